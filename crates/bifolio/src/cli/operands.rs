//! Options between operands, for commands with any number of sources and one destination. clap
//! takes the sources for complete at the first option after them. Not here: the grammar (`cli`).

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use clap::{Arg, Command};

/// Moves the options of such a command before its operands, as getopt(3) of GNU does. Other command
/// lines stay as they are.
pub fn permute(cli: &Command, arguments: Vec<OsString>) -> Vec<OsString> {
    let is_option = |argument: &OsString| argument.as_bytes().starts_with(b"-");
    let name = arguments.iter().skip(1).position(|argument| !is_option(argument));
    let Some((line, rest)) = name.and_then(|name| arguments.split_at_checked(name + 2)) else {
        return arguments;
    };
    let command = line.last().and_then(|name| cli.find_subcommand(name));
    let Some(command) = command.filter(|command| has_sources(command)) else { return arguments };
    let (mut options, mut operands) = (line.to_vec(), Vec::new());
    let mut rest = rest.iter();
    while let Some(argument) = rest.next() {
        match argument.as_bytes() {
            b"--" => operands.extend(rest.by_ref().cloned()),
            b"-" => operands.push(argument.clone()),
            [b'-', ..] => {
                options.push(argument.clone());
                if has_value_after(command, argument.as_bytes()) {
                    options.extend(rest.next().cloned());
                }
            }
            _ => operands.push(argument.clone()),
        }
    }
    if !operands.is_empty() {
        options.push("--".into());
    }
    options.extend(operands);
    options
}

/// Returns whether operands of a command follow others of any number.
fn has_sources(command: &Command) -> bool {
    let mut positionals = command.get_positionals();
    let is_any = |arg: &Arg| arg.get_num_args().is_some_and(|count| count.max_values() > 1);
    positionals.any(is_any) && positionals.next().is_some()
}

/// Returns whether the value of the last option in an argument is the next argument.
fn has_value_after(command: &Command, argument: &[u8]) -> bool {
    let takes_value = |arg: &Arg| arg.get_action().takes_values();
    if let Some(long) = argument.strip_prefix(b"--") {
        let is_it = |arg: &&Arg| arg.get_long().is_some_and(|name| name.as_bytes() == long);
        return command.get_arguments().find(is_it).is_some_and(takes_value);
    }
    let is_it = |short: u8| {
        let mut found = command.get_arguments();
        found.find(|arg| arg.get_short() == Some(char::from(short)))
    };
    let flags = argument.iter().skip(1);
    let first = flags.enumerate().find(|(_, short)| is_it(**short).is_some_and(takes_value));
    first.is_some_and(|(at, _)| at + 2 == argument.len())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn permuted(line: &str) -> String {
        let words = line.split_whitespace().map(OsString::from).collect();
        permute(&crate::cli::Cli::command(), words).join(" ".as_ref()).into_string().unwrap()
    }

    #[test]
    fn options_precede_the_operands_of_commands_with_sources() {
        for (line, expected) in [
            ("b put x --partition 2 d:/y", "b put --partition 2 -- x d:/y"),
            ("b put x --partition=2 d:/y", "b put --partition=2 -- x d:/y"),
            ("b --raw put - -Tm 755 d:/y", "b --raw put -Tm 755 -- - d:/y"),
            ("b put x -m755 d:/y", "b put -m755 -- x d:/y"),
            ("b cp i:/f -a out", "b cp -a -- i:/f out"),
            ("b ln x -s i:/l", "b ln -s -- x i:/l"),
            ("b mv a --raw b", "b mv --raw -- a b"),
            ("b cp a b -- -c -d", "b cp -- a b -c -d"),
            ("b cp a b --jobs", "b cp --jobs -- a b"),
            ("b cp --help", "b cp --help"),
            // Others are left alone.
            ("b find i:/ -name x", "b find i:/ -name x"),
            ("b cat a --raw b", "b cat a --raw b"),
            ("b chmod 600 --raw a", "b chmod 600 --raw a"),
            ("b --help", "b --help"),
            ("b", "b"),
        ] {
            assert_eq!(permuted(line), expected);
        }
    }
}
