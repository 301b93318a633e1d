//! A device that delays a write, so that other operations run in between.

use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use device::{Bio, BioOperation, SharedDevice};
use parking_lot::Mutex;
use testkit::DeviceHooks;

/// The maximum time that a write is delayed. The operation in between may wait for the write itself.
const DELAY_MAX: Duration = Duration::from_millis(50);

#[derive(Default, Debug)]
pub struct Pause(Mutex<Option<(Sender<()>, Receiver<()>)>>);

impl Pause {
    /// Makes the next write send to `reached`, and then wait for `done`, but not for ever.
    pub fn arm(&self, reached: Sender<()>, done: Receiver<()>) {
        *self.0.lock() = Some((reached, done));
    }

    pub fn disarm(&self) {
        *self.0.lock() = None;
    }
}

impl DeviceHooks for Pause {
    fn submit(&self, device: &SharedDevice, batch: Vec<Bio>) {
        if batch.iter().any(|bio| bio.operation() == BioOperation::Write) {
            let armed = self.0.lock().take();
            if let Some((reached, done)) = armed {
                let _ = reached.send(());
                let _ = done.recv_timeout(DELAY_MAX);
            }
        }
        device.submit(batch);
    }
}
