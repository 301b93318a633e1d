//! Latency of requests. While requests follow each other closely, the processors of the host are
//! kept awake (`-o low_latency`, the default for root). While other programs need the processors,
//! the server runs on the processor of its client.
#![allow(clippy::print_stdout, reason = "prints missing features of the host")]

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

/// Returns the lowest wake-up latency that any program of the host requests, in microseconds.
/// Opening the file does not add a request.
fn requested_latency() -> i32 {
    let mut bytes = [0; 4];
    File::open(LATENCY).unwrap().read_exact(&mut bytes).unwrap();
    i32::from_ne_bytes(bytes)
}

/// Returns whether other programs need the processors.
fn is_contended() -> bool {
    let loads = fs::read_to_string("/proc/loadavg").unwrap();
    let runnable: usize =
        loads.split_once('/').unwrap().0.rsplit_once(' ').unwrap().1.parse().unwrap();
    runnable > std::thread::available_parallelism().unwrap().get()
}

#[test]
fn processors_are_kept_awake_only_while_requests_come() {
    private_mounts();
    let fixture = Fixture::with_tree();
    if File::options().write(true).open(LATENCY).is_err() {
        println!("NOTE: this host has no {LATENCY}");
        return fixture.mount_fails(&OPTIONS, 1, "low_latency");
    }
    // low_latency is the default for root.
    let mount = fixture.mount(&["-o", "io_uring=off"]);
    // Each name is used once, because the kernel caches names that do not exist.
    let mut number = 0;
    let (mut rounds, mut contended) = (0, 0);
    let begin = Instant::now();
    while requested_latency() != 0 {
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
    wait_until("the end of the request for low latency", || requested_latency() > 0);
}

#[test]
fn an_ordinary_user_gets_an_error_that_names_the_device() {
    private_mounts();
    let fixture = Fixture::with_tree();
    fixture.allow_nobody();
    let output = fixture.try_mount_as(NOBODY, &OPTIONS);
    assert_eq!(output.status.code(), Some(1), "{}", output.text());
    assert!(output.text().contains("low_latency"), "{}", output.text());
    assert!(output.text().contains(LATENCY), "{}", output.text());
}

/// Returns the processor of the server thread that ran most since the last call. `ran` has the run
/// times at that call.
fn processor_of_the_reader(mount: &Mount<'_>, ran: &mut HashMap<PathBuf, u64>) -> Option<usize> {
    let (mut most, mut processor) = (0, None);
    for task in fs::read_dir(format!("/proc/{}/task", mount.server())).unwrap() {
        let task = task.unwrap().path();
        // The thread may have ended.
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

/// Ends the busy loops on drop, also if a test fails.
struct EndOfLoops<'a>(&'a AtomicBool);

impl Drop for EndOfLoops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn the_server_runs_on_the_processor_of_its_client_under_load() {
    private_mounts();
    let fixture = Fixture::with_tree();
    let mount = fixture.mount(&["-o", "io_uring=off"]);
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
                    // Each name is used once, because the kernel caches names that do not exist.
                    assert!(!mount.path().join(format!("{samples} {request}")).exists());
                }
                samples += 1;
                together += u32::from(processor_of_the_reader(&mount, &mut ran) == Some(processor));
            }
        }
    });
    // The scheduler sometimes moves the server.
    assert!(together > samples * 8 / 10, "{together} of {samples}");
}
