//! Entry point of the `bifolio` command line.
#![forbid(unsafe_code)]

mod accounts;
mod address_space;
mod archive;
mod cli;
mod commands;
mod confinement;
mod console;
mod copy;
mod date;
mod destination;
mod directory;
mod failure;
mod format;
mod helper;
mod hints;
mod images;
mod import;
mod links;
mod listing;
mod log;
mod log_file;
mod mode_change;
mod mount_options;
mod numbers;
mod operands;
mod part;
mod related;
mod signals;
mod target;
mod tree_change;
mod upgrade;
mod users;
mod walk;
mod writing;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use crate::cli::Cli;
use crate::console::Console;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    address_space::spare_arenas(&arguments);
    if let [program, rest @ ..] = &arguments[..]
        && (helper::is_called(program) || helper::is_called_by_fuse(rest))
    {
        return helper::main(program, rest);
    }
    let arguments = operands::permute(&Cli::command(), arguments);
    let cli = Cli::try_parse_from(arguments).unwrap_or_else(|error| hints::add(error).exit());
    let mut console = Console::standard(cli.raw);
    let outcome = cli.command.run(&mut console);
    ExitCode::from(console.finish(outcome).code())
}
