//! FUSE requests, as a transport passes them on; several for one server.
#![no_main]

use std::sync::Arc;

use fuse::{Reply, Request, Server, ServerOptions};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: Vec<(u32, u64, Vec<u8>)>| {
    std::thread_local! {
        static VOLUME: Arc<vfs::Volume> =
            Arc::new(support::open(support::image(support::INLINE).to_vec()).expect("valid"));
    }
    let volume = VOLUME.with(Arc::clone);
    let server = Server::new(volume, ServerOptions::default()).expect("a server");
    let mut buffer = vec![0; 64 << 10];
    for (opcode, node, body) in data {
        let mut bytes = Vec::new();
        bytes.extend((40 + body.len() as u32).to_ne_bytes());
        bytes.extend((opcode % 64).to_ne_bytes());
        bytes.extend(7u64.to_ne_bytes());
        bytes.extend((node % 64).to_ne_bytes());
        bytes.extend([0; 16]);
        bytes.extend(body);
        if let Some(request) = Request::parse(&bytes) {
            let mut reply = Reply::new(&mut buffer);
            let _ = server.handle(&request, &mut reply);
        }
    }
});
