//! The output: the table, and the rows whose cost grows.

use crate::cost::{Cost, Costs};

/// The maximum ratio of a row's costs at the largest and at the compared size. Rows above it are
/// reported.
const GROWTH_MAX: f64 = 1.5;
/// The size that is compared with the largest one. At smaller sizes, fixed costs matter.
const COMPARED_WITH: u64 = 10_000;

/// The table.
pub struct Table {
    sizes: Vec<u64>,
    in_cpu: bool,
    grown: Vec<String>,
}

impl Table {
    /// Prints the heading.
    pub fn new(sizes: &[u64], in_cpu: bool) -> Self {
        let time = if in_cpu { "processor time" } else { "time" };
        print!("\n{time} for each unit, µs; ratio: largest size to 10^4\n\n{:<36}", "");
        sizes.iter().for_each(|size| print!("{:>10}", format!("10^{}", size.ilog10())));
        println!(" |{:>8}", "ratio");
        Self { sizes: sizes.to_vec(), in_cpu, grown: Vec::new() }
    }

    /// Prints the rows of a series. `columns` has its costs at each size.
    pub fn add(&mut self, series: &str, columns: &[Costs]) {
        let Some(first) = columns.first() else { return };
        for (row, _) in &first.0 {
            let cost = |costs: &Costs| -> Option<Cost> {
                costs.0.iter().find(|(name, _)| name == row).map(|(_, cost)| *cost)
            };
            let number = |cost: Cost| 1e6 * if self.in_cpu { cost.cpu } else { cost.wall };
            let costs: Vec<Option<f64>> =
                columns.iter().map(|costs| cost(costs).map(number)).collect();
            let name = format!("{series}: {row}");
            print!("{name:<36}");
            for cost in &costs {
                match cost {
                    Some(cost) => print!("{cost:>10.2}"),
                    None => print!("{:>10}", "-"),
                }
            }
            let at = self.sizes.iter().position(|size| *size == COMPARED_WITH);
            let before = at.and_then(|at| costs[at]);
            let last = costs.iter().skip(at.map_or(0, |at| at + 1)).rev().find_map(|cost| *cost);
            match before.zip(last) {
                Some((before, last)) => {
                    let ratio = last / before;
                    println!(" |{ratio:>8.2}");
                    if ratio > GROWTH_MAX {
                        self.grown.push(format!("{name}: {ratio:.2}"));
                    }
                }
                None => println!(" |"),
            }
        }
    }

    /// Prints the rows whose ratio exceeds the maximum.
    pub fn finish(&self) {
        if self.grown.is_empty() {
            println!("\nno unit costs more than {GROWTH_MAX} times as much as at 10^4");
        } else {
            println!("\nunits that cost more than {GROWTH_MAX} times as much as at 10^4:");
        }
        self.grown.iter().for_each(|row| println!("  {row}"));
    }
}
