//! Entry point of the `bifolio` command line.
#![forbid(unsafe_code)]

mod archive;
mod cli;
mod commands;
mod console;
mod copy;
mod format;
mod helper;
mod images;
mod import;
mod mount_options;
mod tree;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use crate::cli::Cli;
use crate::console::Console;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    images::address_space::spare_arenas(&arguments);
    if let [program, rest @ ..] = &arguments[..]
        && (helper::is_called(program) || helper::is_called_by_fuse(rest))
    {
        return helper::main(program, rest);
    }
    let arguments = cli::operands::permute(&Cli::command(), arguments);
    let cli = Cli::try_parse_from(arguments).unwrap_or_else(|error| cli::hints::add(error).exit());
    let mut console = Console::standard(cli.raw);
    let outcome = cli.command.run(&mut console);
    ExitCode::from(console.finish(outcome).code())
}
