//! SQLite on mounts of f2fs: it writes its databases atomically, without a journal file, and finds
//! them consistent after the server was killed. `scripts/fetch-sqlite` builds it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::mounting::Fixture;
use rustix::process::Signal;
use testkit::command::run;
use testkit::f2fs::{Kind, check_by_both};
use testkit::{Random, private_mounts};

const DATABASE: &str = "a database";
const ROUNDS: u64 = 6;

fn client(action: &str, mount: &Path) -> Command {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/sqlite/client");
    assert!(path.exists(), "no {}: run scripts/fetch-sqlite", path.display());
    let mut client = Command::new(path);
    client.arg(action).arg(mount.join(DATABASE));
    client
}

fn f2fs() -> Fixture {
    let fixture = Fixture::new();
    Kind::named("attributes").make(&fixture.image, 128);
    fixture
}

/// Runs transactions. Returns the last line that the client prints, which says how SQLite wrote.
fn run_transactions(mount: &Path, count: &str) -> String {
    let printed = run(client("run", mount).arg(count));
    let text = String::from_utf8(printed).unwrap();
    text.lines().next_back().unwrap().to_owned()
}

/// Checks the database. Returns the number of the last transaction.
fn last_transaction(mount: &Path) -> u64 {
    let printed = run(&mut client("check", mount));
    String::from_utf8(printed).unwrap().trim().parse().unwrap()
}

fn journal(mount: &Path) -> PathBuf {
    mount.join(format!("{DATABASE}-journal"))
}

#[test]
fn sqlite_writes_atomically_instead_of_a_journal() {
    private_mounts();
    let fixture = f2fs();
    let mount = fixture.mount(&["-o", "rw"]);
    let first = run_transactions(mount.path(), "1");
    // All transactions that are not rolled back, apart from that which creates the database.
    let how = run_transactions(mount.path(), "60");
    assert_eq!(how, "started 60 committed 60 aborted 0 journals 0", "the first time: {first}");
    assert_eq!(last_transaction(mount.path()), 61);
    fixture.umount();
    mount.assert_gone();
    check_by_both(&fixture.image);
    // With -o writeback, SQLite learns that it cannot, and writes a journal.
    let mount = fixture.mount(&["-o", "rw,writeback"]);
    let how = run_transactions(mount.path(), "5");
    assert!(how.starts_with("started 0 committed 0 aborted 0 journals "), "{how}");
    assert!(!how.ends_with(" 0"), "{how}");
    assert_eq!(last_transaction(mount.path()), 66);
}

#[test]
fn a_database_has_every_transaction_that_ended_before_the_server_was_killed() {
    private_mounts();
    let fixture = f2fs();
    let mut random = Random(7);
    let mut promised = 0;
    for round in 0..ROUNDS {
        let mount = fixture.mount(&["-o", "rw"]);
        if round > 0 {
            assert!(!journal(mount.path()).exists(), "round {round}: a journal");
            let last = last_transaction(mount.path());
            assert!((promised..=promised + 1).contains(&last), "{last}, not {promised}");
        }
        let mut running = client("run", mount.path());
        running.arg("100000").stdout(Stdio::piped()).stderr(Stdio::null());
        let mut running = running.spawn().unwrap();
        let lines = BufReader::new(running.stdout.take().unwrap()).lines();
        let kill_after = 1 + random.below(40);
        for (count, line) in (1..).zip(lines) {
            promised = line.unwrap().parse().unwrap();
            if count == kill_after {
                // At any time in the next transaction or its commit.
                std::thread::sleep(Duration::from_micros(random.below(3000)));
                mount.signal_server(Signal::KILL);
            }
        }
        assert!(!running.wait().unwrap().success(), "it ended without an error");
        mount.unmount_dead();
    }
    let mount = fixture.mount(&["-o", "rw"]);
    let last = last_transaction(mount.path());
    assert!((promised..=promised + 1).contains(&last), "{last}, not {promised}");
    assert!(fs::metadata(mount.path().join(DATABASE)).unwrap().len() > 0);
    fixture.umount();
    mount.assert_gone();
    check_by_both(&fixture.image);
}
