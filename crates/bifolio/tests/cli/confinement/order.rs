//! The order of confinement and parsing, for every command: without a layer, no byte of an image is
//! parsed.

use testkit::command::output;
use testkit::{Denied, LAYERS_REFUSED, deny, private_mounts, refusals_of_layer};

use super::image;
use crate::support::{bifolio, shell};

#[test]
fn commands_with_host_files_do_not_parse_an_image_without_a_layer() {
    let image = image();
    let folder = image.folder.path();
    // A container is found when an image is parsed.
    shell(folder, "qemu-img convert -O qcow2 image container; echo text > text");
    let container = format!("{}:/new", image.beside("container").display());
    let here = |name: &str| image.beside(name).display().to_string();
    shell(folder, "mkdir tree; echo text > tree/file");
    let calls: &[&[&str]] = &[
        &["put", &here("text"), &container],
        &["cp", &here("text"), &container],
        &["cp", "-a", &here("tree"), &container],
        &["cp", "-a", &container, &here("out")],
    ];
    let check = |call: &[&str], layer: &str, refusals: &[Denied]| {
        let run = |options: &[&str]| {
            let mut command = bifolio();
            command.args(call).args(options);
            deny(&mut command, refusals);
            output(&mut command).text()
        };
        let failed = run(&[]);
        assert!(failed.contains(&format!("--no-confine={layer}")), "{call:?}, {layer}: {failed}");
        assert!(!failed.contains("qcow2"), "{call:?}, {layer}: {failed}");
        // The kernel takes both filters only from processes that cannot get new privileges.
        let named = run(&[&format!("--no-confine={layer},landlock,seccomp")]);
        assert!(named.contains("in the format qcow2"), "{call:?}, {layer}: {named}");
    };
    for call in calls {
        // A copy of a tree stays the user that it is.
        let has_tree = call.contains(&"-a");
        for case in LAYERS_REFUSED.into_iter().filter(|case| !has_tree || *case != "user") {
            let layer = case.split(' ').next().unwrap_or_default();
            check(call, layer, &refusals_of_layer(case));
        }
    }
    let chroot = Denied { call: libc::SYS_chroot, first_argument: None, errno: libc::EPERM };
    check(calls[3], "chroot", &[chroot]);
}

/// The commands that parse no image: they work on mounts, or on nothing.
const WITHOUT_IMAGE: [(&str, &str); 5] = [
    ("umount", "the guard of a mount unmounts, and its server writes"),
    ("sync", "the kernel and the server of a mount write"),
    ("completions", "prints a script"),
    ("man", "writes pages"),
    ("help", "prints the help"),
];

/// Returns the names of all commands, by the help.
fn commands() -> Vec<String> {
    let help = output(bifolio().arg("--help")).text();
    let (_, listed) = help.split_once("\nCommands:\n").expect("a list of commands");
    let (listed, _) = listed.split_once("\n\nOptions:").expect("a list of options");
    // Lines that continue a description have more spaces.
    let names = listed.lines().filter_map(|line| line.strip_prefix("  "));
    let names = names.filter(|line| !line.starts_with(' '));
    names.filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

#[test]
fn no_command_parses_an_image_before_it_is_confined() {
    private_mounts();
    let image = image();
    let folder = image.folder.path();
    // A container is found when an image is parsed.
    let script = "qemu-img convert -O qcow2 image container; echo text > text; mkdir tree mounted
        tar -cf archive text";
    shell(folder, script);
    let here = |name: &str| image.beside(name).display().to_string();
    let container = here("container");
    let at = |path: &str| format!("{container}:{path}");
    let calls: &[&[&str]] = &[
        &["info", &container],
        &["ls", &container],
        &["tree", &container],
        &["stat", &container],
        &["cat", &at("/file")],
        &["cp", &at("/file"), &here("out")],
        &["cp", "-a", &at("/"), &here("out")],
        &["cp", &here("text"), &at("/new")],
        &["cp", "-a", &here("tree"), &at("/new")],
        &["cp", "-a", &at("/"), &format!("{}:/new", here("image"))],
        &["cp", &format!("{}:/file", here("image")), &at("/new")],
        &["du", &container],
        &["df", &container],
        &["find", &container],
        &["fiemap", &at("/file")],
        &["check", &container],
        &["put", &here("text"), &at("/new")],
        &["tar", &here("archive"), &at("/new")],
        &["mkdir", &at("/new")],
        &["rm", &at("/file")],
        &["mv", &at("/file"), &at("/new")],
        &["ln", &at("/file"), &at("/new")],
        &["fallocate", "-l", "1", &at("/file")],
        &["defrag", &container],
        &["gc", &container],
        &["chmod", "600", &at("/file")],
        &["chown", "1", &at("/file")],
        &["chattr", "+i", &at("/file")],
        &["lsattr", &container],
        &["setfattr", "-n", "user.x", &at("/file")],
        &["getfattr", &at("/file")],
        &["touch", &at("/file")],
        &["truncate", "-s", "1", &at("/file")],
        &["mknod", &at("/new"), "p"],
        &["mount", &container, &here("mounted")],
        &["mount", "-o", "rw", &container, &here("mounted")],
        // A partition is found by a process of its own.
        &["mount", "--partition", "1", &container, &here("mounted")],
    ];
    let found = commands();
    assert!(found.len() > WITHOUT_IMAGE.len(), "{found:?}");
    for name in &found {
        let is_called = calls.iter().any(|call| call[0] == name);
        let is_exception = WITHOUT_IMAGE.iter().any(|(exception, _)| exception == name);
        assert!(is_called != is_exception, "{name}: a call of it belongs in this test");
    }
    for call in calls {
        assert!(found.iter().any(|name| name == call[0]), "{}: {found:?}", call[0]);
        let run = |options: &[&str]| {
            let mut command = bifolio();
            command.args(*call).args(options);
            deny(&mut command, &refusals_of_layer("limits"));
            output(&mut command)
        };
        let failed = run(&[]);
        assert!(!failed.status.success(), "{call:?}");
        let text = failed.text();
        assert!(text.contains("--no-confine=limits"), "{call:?}: {text}");
        assert!(!text.contains("qcow2"), "{call:?}: {text}");
        let named = run(&["--no-confine=limits"]).text();
        assert!(named.contains("qcow2"), "{call:?}: {named}");
    }
}
