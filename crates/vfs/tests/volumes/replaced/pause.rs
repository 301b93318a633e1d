//! A device that delays a write, so that other operations run in between.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use device::{Bio, BioOperation, SharedDevice};
use parking_lot::Mutex;
use testkit::{DeviceHooks, Waiter};

#[derive(Default, Debug)]
pub struct Pause(Mutex<Option<(Sender<()>, Arc<Waiter>)>>);

impl Pause {
    /// Makes the next write send to `reached`, and wait until the work of `other` has ended, or
    /// waits itself, which may be for this write.
    pub fn arm(&self, reached: Sender<()>, other: Arc<Waiter>) {
        *self.0.lock() = Some((reached, other));
    }

    pub fn disarm(&self) {
        *self.0.lock() = None;
    }
}

impl DeviceHooks for Pause {
    fn submit(&self, device: &SharedDevice, batch: Vec<Bio>) {
        if batch.iter().any(|bio| bio.operation() == BioOperation::Write) {
            let armed = self.0.lock().take();
            if let Some((reached, other)) = armed {
                let _ = reached.send(());
                let _ = other.begins_to_wait();
            }
        }
        device.submit(batch);
    }
}
