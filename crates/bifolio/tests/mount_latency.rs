//! What a mount does so that requests take little time. While they follow each other closely, the host's processors are
//! kept from sleeping, by default (`-o low_latency`). Beside programs that compute, the server follows its client from
//! processor to processor.
#![allow(clippy::print_stdout, reason = "what a host does not have is said")]

mod mounting;

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mounting::*;
use rustix::thread::CpuSet;
use testkit::{private_mounts, wait_until};

const LATENCY: &str = "/dev/cpu_dma_latency";
const OPTIONS: [&str; 2] = ["-o", "low_latency,io_uring=off"];

/// What the host's programs together want, in microseconds; to ask is to want nothing oneself.
fn wanted() -> i32 {
    let mut bytes = [0; 4];
    File::open(LATENCY).unwrap().read_exact(&mut bytes).unwrap();
    i32::from_ne_bytes(bytes)
}

/// Whether other programs need the processors.
fn is_contended() -> bool {
    let loads = fs::read_to_string("/proc/loadavg").unwrap();
    let runnable: usize =
        loads.split_once('/').unwrap().0.rsplit_once(' ').unwrap().1.parse().unwrap();
    runnable > std::thread::available_parallelism().unwrap().get()
}

#[test]
fn processors_are_kept_awake_only_while_requests_come() {
    private_mounts();
    let place = Location::with_tree();
    if File::options().write(true).open(LATENCY).is_err() {
        println!("NOTE: this host has no {LATENCY}");
        return place.mount_fails(&OPTIONS, 1, "low_latency");
    }
    // For root it is the default.
    let mount = place.mount(&["-o", "io_uring=off"]);
    // No name twice: the kernel remembers those that are not there.
    let mut number = 0;
    let (mut rounds, mut contended) = (0, 0);
    let begin = Instant::now();
    while wanted() != 0 {
        for _ in 0..200 {
            number += 1;
            assert!(!mount.path().join(number.to_string()).exists());
        }
        rounds += 1;
        contended += u32::from(is_contended());
        if begin.elapsed() > Duration::from_secs(30) {
            assert!(contended > rounds / 4, "not within 30 s: {contended} of {rounds} contended");
            return println!("NOTE: other programs needed the processors all the time");
        }
    }
    wait_until("the host is told that none come any more", || wanted() > 0);
}

#[test]
fn an_ordinary_user_is_told_what_is_missing() {
    private_mounts();
    let place = Location::with_tree();
    place.give_to_nobody();
    let output = place.try_mount_as(NOBODY, &OPTIONS);
    assert_eq!(output.status.code(), Some(1), "{}", output.text());
    assert!(output.text().contains("low_latency"), "{}", output.text());
    assert!(output.text().contains(LATENCY), "{}", output.text());
}

/// Returns the processor of the server's thread that has run most since the last call, by the times in `ran`.
fn processor_of_the_reader(mount: &Mount<'_>, ran: &mut HashMap<PathBuf, u64>) -> Option<usize> {
    let (mut most, mut processor) = (0, None);
    for task in fs::read_dir(format!("/proc/{}/task", mount.server())).unwrap() {
        let task = task.unwrap().path();
        // Threads end, too.
        let read = |name| fs::read_to_string(task.join(name)).unwrap_or_default();
        let (times, stat) = (read("schedstat"), read("stat"));
        let (Ok(time), Some((name, fields))) =
            (times.split(' ').next().unwrap().parse::<u64>(), stat.rsplit_once(')'))
        else {
            continue;
        };
        let since = time - ran.insert(task, time).unwrap_or(0);
        if name.contains("(fuse-") && since > most {
            most = since;
            processor = fields.split_whitespace().nth(36).and_then(|field| field.parse().ok());
        }
    }
    processor
}

/// Ends busy loops, also when a test fails.
struct EndOfLoops<'a>(&'a AtomicBool);

impl Drop for EndOfLoops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn beside_programs_that_compute_the_server_follows_its_client() {
    private_mounts();
    let place = Location::with_tree();
    let mount = place.mount(&["-o", "io_uring=off"]);
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    let processors: Vec<_> =
        (0..CpuSet::MAX_CPU).filter(|&number| allowed.is_set(number)).collect();
    let done = AtomicBool::new(false);
    let (mut samples, mut together) = (0, 0);
    std::thread::scope(|scope| {
        let _end = EndOfLoops(&done);
        for _ in 0..2 * processors.len() {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let mut ran = HashMap::new();
        for &processor in [processors[0], processors[processors.len() - 1]].iter().cycle().take(6) {
            let mut here = CpuSet::new();
            here.set(processor);
            rustix::thread::sched_setaffinity(None, &here).unwrap();
            for _ in 0..10 {
                for request in 0..100 {
                    // No name twice: the kernel remembers those that are not there.
                    assert!(!mount.path().join(format!("{samples} {request}")).exists());
                }
                samples += 1;
                together += u32::from(processor_of_the_reader(&mount, &mut ran) == Some(processor));
            }
        }
    });
    // The scheduler moves the server now and then.
    assert!(together > samples * 8 / 10, "{together} of {samples}");
}
