//! A volume with a file that is open twice, on a device that may fail, and what a power cut leaves of it.

use std::sync::Arc;

use base::IoOperation;
use device::{CountedFault, FaultDevice, FaultPlan, Lasting, RecordDevice, Replay, SharedDevice};
use testkit::crash::{can_fsck_f2fs_read, complaint_of_fsck_f2fs};
use testkit::f2fs::findings;
use vfs::{File, Follow, Node, Volume};

use crate::kind::Kind;
use crate::{EIO, WRITE, create};

/// A volume whose file `/file` is durable, and empty.
pub struct Stage {
    kind: &'static Kind,
    pub faults: Arc<FaultDevice>,
    recorder: Arc<RecordDevice>,
    pub volume: Volume,
    pub node: Arc<Node>,
    pub files: [File; 2],
}

impl Stage {
    /// Makes a volume on a device on which the request with a number, of all of an operation, fails once.
    pub fn new(kind: &'static Kind, fault: Option<(IoOperation, u64)>) -> Self {
        let counted = fault.map(|(operation, number)| CountedFault {
            operation,
            number,
            lasting: Lasting::Once,
            errno: EIO,
        });
        let mut faults = None;
        let recorder = RecordDevice::over_layer(kind.contents(), |layer| {
            let plan = FaultPlan { counted, ..FaultPlan::default() };
            let device = Arc::new(FaultDevice::new(layer, plan));
            Arc::clone(faults.insert(device)) as SharedDevice
        });
        let (recorder, faults) = (Arc::new(recorder), faults.expect("the layer was wrapped"));
        let volume = kind.open(recorder.clone());
        let node = create(&volume, "/file").unwrap();
        let files = [(); 2].map(|()| node.open_for(WRITE).unwrap());
        volume.sync().unwrap();
        Self { kind, faults, recorder, volume, node, files }
    }

    /// Returns the contents of `/file` after a power cut that keeps or loses all volatile writes. Of f2fs, checks the volume
    /// after its recovery.
    pub fn contents_after_cut(&self, keeps_volatile: bool) -> Vec<u8> {
        let recording = self.recorder.recording();
        let end = recording.crash_points().end - 1;
        let rebuilt = Replay::new(&recording).device(end, |_, _| keeps_volatile).unwrap();
        let found = self.contents_on(rebuilt.device());
        if *self.kind == Kind::Ext4 {
            return found;
        }
        let place = format!("{:?}, {keeps_volatile}", self.kind);
        self.kind.try_open(rebuilt.device(), true).unwrap().close().unwrap();
        assert_eq!(findings(rebuilt.device()), [""; 0], "{place}");
        if can_fsck_f2fs_read(&rebuilt) {
            assert_eq!(complaint_of_fsck_f2fs(&rebuilt), None, "{place}");
        }
        assert!(self.contents_on(rebuilt.device()) == found, "{place}: recovered in place");
        found
    }

    fn contents_on(&self, device: SharedDevice) -> Vec<u8> {
        let volume = self.kind.try_open(device, false).unwrap();
        let file = volume.resolve(b"/file", Follow::No).unwrap().open().unwrap();
        let mut bytes = vec![0xaa; 100_000];
        let length = file.read_at(&mut bytes, 0).unwrap();
        bytes.truncate(length);
        bytes
    }
}
