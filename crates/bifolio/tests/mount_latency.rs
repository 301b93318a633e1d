//! `-o low_latency`: while requests follow each other closely, and only then, the host's processors
//! are kept from sleeping.
#![allow(clippy::print_stdout, reason = "what a host does not have is said")]

mod mounting;

use std::fs::File;
use std::io::Read;

use mounting::*;
use testkit::{private_mounts, wait_until};

const LATENCY: &str = "/dev/cpu_dma_latency";
const OPTIONS: [&str; 2] = ["-o", "low_latency,io_uring=off"];

/// What the host's programs together want, in microseconds; to ask is to want nothing oneself.
fn wanted() -> i32 {
    let mut bytes = [0; 4];
    File::open(LATENCY).unwrap().read_exact(&mut bytes).unwrap();
    i32::from_ne_bytes(bytes)
}

#[test]
fn processors_are_kept_awake_only_while_requests_come() {
    private_mounts();
    let place = Place::with_tree();
    if File::options().write(true).open(LATENCY).is_err() {
        println!("NOTE: this host has no {LATENCY}");
        return place.mount_fails(&OPTIONS, 1, "low_latency");
    }
    let mount = place.mount(&OPTIONS);
    // No name twice: the kernel remembers those that are not there.
    let mut number = 0;
    wait_until("the host is told that requests come", || {
        for _ in 0..200 {
            number += 1;
            assert!(!mount.path().join(number.to_string()).exists());
        }
        wanted() == 0
    });
    wait_until("the host is told that none come any more", || wanted() > 0);
}

#[test]
fn an_ordinary_user_is_told_what_is_missing() {
    private_mounts();
    let place = Place::with_tree();
    place.give_to_nobody();
    let output = place.try_mount_as(NOBODY, &OPTIONS);
    assert_eq!(output.status.code(), Some(1), "{}", output.text());
    assert!(output.text().contains("low_latency"), "{}", output.text());
    assert!(output.text().contains(LATENCY), "{}", output.text());
}
