//! The output: the table.

use bench::GIB;

use crate::case::Case;
use crate::measure::Medians;
use crate::sides::Side;

/// The indexes of columns in the medians.
pub const MEMORY: usize = 0;
pub const KERNEL: usize = 1;
pub const OURS: usize = 2;
pub const ORDER_0: usize = 3;
pub const NEITHER: usize = 6;

/// Prints the names of the columns.
pub fn print_heading(threads: usize, sides: &[Box<dyn Side>]) {
    let plural = if threads == 1 { "" } else { "s" };
    println!("\n{threads} thread{plural}, GiB/s; ratios of ours to other sides\n");
    print!("{:<16}", "");
    for side in sides {
        print!("{:>9}", side.name());
    }
    println!(" |{:>9}{:>9}{:>9}{:>9}", "memcpy", "kernel", "order 0", "neither");
}

/// Prints the processor time of the library's sides in these cases. It depends less on other
/// programs than speed.
pub fn print_costs(sides: &[Box<dyn Side>], rows: &[(Case, Medians)]) {
    println!("\nprocessor time, ms/GiB; difference of other sides to ours\n");
    print!("{:<16}", "");
    let ours = sides.iter().skip(OURS);
    ours.clone().for_each(|side| print!("{:>9}", side.name()));
    print!(" |");
    ours.skip(1).for_each(|side| print!("{:>9}", side.name()));
    println!();
    for (case, Medians { costs, .. }) in rows {
        print!("{case:<16}");
        costs[OURS..].iter().for_each(|cost| print!("{:>9.1}", cost * GIB * 1e3));
        print!(" |");
        let differences = costs[OURS + 1..].iter().map(|cost| (cost / costs[OURS] - 1.0) * 100.0);
        differences.for_each(|difference| print!("{difference:>+8.0}%"));
        println!();
    }
}

/// Prints the row of a case.
pub fn print_row(case: &Case, Medians { speeds: medians, .. }: &Medians) {
    print!("{case:<16}");
    for median in medians {
        print!("{:>9.2}", median / GIB);
    }
    print!(" |");
    for column in [MEMORY, KERNEL, ORDER_0, NEITHER] {
        print!("{:>9.2}", medians[OURS] / medians[column]);
    }
    println!();
}
