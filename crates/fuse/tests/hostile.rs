//! Arbitrary bytes as requests: the server does not panic, and answers exactly the requests that
//! need an answer.

mod support;

use fuse::protocol::Opcode;
use proptest::prelude::*;
use support::{exchange, request_as, server_and_gate, writable_server};

fn node() -> impl Strategy<Value = u64> {
    prop_oneof![0..20_u64, 995..1005_u64, any::<u64>()]
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let (server, gate) = server_and_gate();
        gate.open();
        exchange(&server, &bytes);
    }

    #[test]
    fn all_requests_are_answered_except_those_without_an_answer(
        requests in proptest::collection::vec(
            (
                prop_oneof![0..60_u32, any::<u32>()],
                node(),
                any::<bool>(),
                proptest::collection::vec(prop_oneof![Just(0_u8), any::<u8>()], 0..200),
            ),
            1..40,
        )
    ) {
        let (server, gate) = server_and_gate();
        gate.open();
        for (opcode, node, as_root, body) in requests {
            let uid = if as_root { 0 } else { 1000 };
            let answer = exchange(&server, &request_as(uid, opcode, node, &[&body]));
            let is_silent = [Opcode::Forget, Opcode::BatchForget, Opcode::NotifyReply]
                .iter()
                .any(|&silent| silent as u32 == opcode);
            prop_assert_eq!(answer.is_none(), is_silent, "{}", opcode);
            if let Some(Err(errno)) = answer {
                prop_assert!((1..512).contains(&errno));
            }
        }
    }

    #[test]
    fn requests_that_change_the_volume_leave_a_valid_tree(
        requests in proptest::collection::vec(
            (
                prop_oneof![Just(0_u32), 4..54_u32],
                1..8_u64,
                0..8_u64,
                "[ab]{1}",
                "[ab]{1}",
                0..8_u32,
            ),
            1..60,
        )
    ) {
        let (server, file_system) = writable_server(u64::MAX);
        for (opcode, node, other, name, second, flags) in requests {
            // The fixed part contains small numbers, and has one of three lengths. Names follow.
            let name = [name.as_bytes(), b"\0"].concat();
            let names = [&name[..], second.as_bytes(), b"\0"].concat();
            let length = [8, 16, 4 * flags as usize][flags as usize % 3];
            let fixed = [&other.to_ne_bytes()[..], &flags.to_ne_bytes(), &[0; 40]].concat();
            for rest in [&name, &names] {
                let body = [&fixed[..length], &rest[..]].concat();
                exchange(&server, &request_as(0, opcode, node, &[&body]));
            }
        }
        file_system.verify();
        prop_assert!(server.close().is_ok());
    }
}
