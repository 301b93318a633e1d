//! The output: the table.

use bench::mount::{FUSE2FS, KERNEL, MOUNT, NO_LOW_LATENCY, RINGS};

use crate::row::Row;
use crate::side::Side;

/// The printed ratios: two columns, and the heading.
const RATIOS: [(&str, &str, &str); 6] = [
    (MOUNT, KERNEL, "m/kernel"),
    (NO_LOW_LATENCY, KERNEL, "n/kernel"),
    (RINGS, KERNEL, "r/kernel"),
    (MOUNT, FUSE2FS, "m/fuse2fs"),
    (NO_LOW_LATENCY, FUSE2FS, "n/fuse2fs"),
    (RINGS, FUSE2FS, "r/fuse2fs"),
];

/// Prints the names of the columns.
pub fn print_heading(sides: &[Side]) {
    println!("\nreading, MiB/s; ratios of our mounts (m, n, r) to the others\n");
    print!("{:<26}", "");
    sides.iter().for_each(|side| print!("{:>10}", side.name));
    print!(" |");
    RATIOS.iter().for_each(|(_, _, heading)| print!("{heading:>10}"));
    println!();
}

/// Prints a row, with the bytes per second of each side.
pub fn print_row(row: &Row, sides: &[Side], speeds: impl Iterator<Item = f64>) {
    let speeds: Vec<f64> = speeds.map(|speed| speed / f64::from(1 << 20)).collect();
    print!("{row:<26}");
    speeds.iter().for_each(|speed| print!("{speed:>10.1}"));
    print!(" |");
    let speed_of = |name: &str| {
        let mut found = sides.iter().zip(&speeds).filter(|(side, _)| side.name == name);
        found.next().map(|(_, speed)| speed)
    };
    for (one, other, _) in RATIOS {
        match speed_of(one).zip(speed_of(other)) {
            Some((one, other)) => print!("{:>10.2}", one / other),
            None => print!("{:>10}", ""),
        }
    }
    println!();
}
