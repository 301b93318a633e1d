//! Threads that change the same few names concurrently. The format panics if two calls break the
//! rules on locks, and the tree must be consistent afterwards.

use base::Error;
use proptest::prelude::*;
use vfs::{Follow, RenameFlags};

use crate::writing::*;

/// An operation of a thread. Numbers choose among few names and directories.
#[derive(Clone, Copy, Debug)]
enum Step {
    Mkdir(u8, u8),
    Create(u8, u8),
    Link(u8, u8, u8, u8),
    Remove(u8, u8),
    Rename(u8, u8, u8, u8, u8),
    Hold(u8, u8),
    Unnamed(u8, u8),
    Drop,
}

fn step() -> impl Strategy<Value = Step> {
    let place = || (0..6_u8, 0..3_u8);
    prop_oneof![
        2 => place().prop_map(|(d, n)| Step::Mkdir(d, n)),
        2 => place().prop_map(|(d, n)| Step::Create(d, n)),
        1 => (place(), place()).prop_map(|((d, n), (e, m))| Step::Link(d, n, e, m)),
        2 => place().prop_map(|(d, n)| Step::Remove(d, n)),
        5 => (place(), place(), 0..4_u8).prop_map(|((d, n), (e, m), f)| Step::Rename(d, n, e, m, f)),
        5 => place().prop_map(|(d, n)| Step::Hold(d, n)),
        1 => place().prop_map(|(d, n)| Step::Unnamed(d, n)),
        3 => Just(Step::Drop),
    ]
}

/// Returns a path in nested directories, in which wrong moves could make loops.
fn path(directory: u8, name: u8) -> Vec<u8> {
    let directory = ["", "/0", "/1", "/0/0", "/0/1", "/0/0/1"][usize::from(directory)];
    format!("{directory}/{name}").into_bytes()
}

fn run(volume: &Volume, steps: &[Step]) -> Result<(), Error> {
    let mut held = Vec::new();
    for step in steps {
        let done = match *step {
            Step::Mkdir(d, n) => volume.mkdir(&path(d, n), 0o755, &ROOT).map(drop),
            Step::Create(d, n) => volume.create_file(&path(d, n), 0o644, &ROOT).map(drop),
            Step::Link(d, n, e, m) => volume.link_at(&path(d, n), &path(e, m)),
            Step::Remove(d, n) => volume.remove(&path(d, n), &ROOT),
            Step::Rename(d, n, e, m, flags) => {
                let (exchange, whiteout) = (flags == 2, flags == 3);
                let flags = RenameFlags { no_replace: flags == 1, exchange, whiteout };
                volume.rename_at(&path(d, n), &path(e, m), flags, &ROOT)
            }
            Step::Hold(d, n) => volume.resolve(&path(d, n), Follow::No).map(|node| {
                let _ =
                    node.set_xattr(b"user.a", b"", vfs::XattrMode::Either, vfs::Privileges::Keep);
                held.push(node);
            }),
            Step::Unnamed(d, n) => volume.resolve(&path(d, 0), Follow::No).and_then(|node| {
                let file = volume.create_unnamed(&node, &regular(0o600), &ROOT)?;
                volume.link(&node, format!("{n}").as_bytes(), &file)
            }),
            Step::Drop => {
                held.clear();
                Ok(())
            }
        };
        if let Err(error @ (Error::Corrupt(_) | Error::Io(_) | Error::ReadOnly)) = done {
            return Err(error);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn concurrent_changes_leave_a_consistent_tree(
        nodes_max in 1..8_usize,
        threads in proptest::collection::vec(proptest::collection::vec(step(), 1..60), 2..4),
    ) {
        let (volume, file_system) = volume_with(nodes_max);
        for directory in ["/0", "/1", "/0/0", "/0/1"] {
            mkdir(&volume, directory);
        }
        let outcomes: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = threads
                .iter()
                .map(|steps| scope.spawn(|| run(&volume, steps)))
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        for outcome in outcomes {
            prop_assert_eq!(outcome, Ok(()));
        }
        prop_assert_eq!(file_system.verify(), 0, "all inodes without a name are released");
    }
}
