//! Whatever bytes come as a request: no panic, and exactly the answers that the kernel expects.

mod support;

use fuse::protocol::Opcode;
use proptest::prelude::*;
use support::{exchange, request_as, server_and_gate};

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
    fn every_sound_request_is_answered_unless_it_must_not_be(
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
            let silent = [Opcode::Forget, Opcode::BatchForget, Opcode::NotifyReply]
                .iter()
                .any(|&silent| silent as u32 == opcode);
            prop_assert_eq!(answer.is_none(), silent, "{}", opcode);
            if let Some(Err(errno)) = answer {
                prop_assert!((1..512).contains(&errno));
            }
        }
    }
}
