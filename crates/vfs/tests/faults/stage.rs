//! A volume with a file that is open twice, on a device that may fail, and what a power cut leaves
//! of it.

use std::sync::Arc;

use base::IoOperation;
use device::{
    CountedFault, FaultDevice, FaultPlan, Lasting, RebuiltDevice, RecordDevice, Replay,
    SharedDevice,
};
use testkit::crash::{can_fsck_f2fs_read, complaint_of_fsck_f2fs};
use testkit::f2fs::findings;
use vfs::{File, Follow, Node, Volume};

use crate::kind::Kind;
use crate::{EIO, WRITE, create};

/// A recorded device that fails.
pub struct Faulty {
    pub faults: Arc<FaultDevice>,
    pub recorder: Arc<RecordDevice>,
}

impl Faulty {
    /// Returns a device with these contents, on which the request with a number, of all of an
    /// operation, fails once.
    pub fn new(contents: &SharedDevice, fault: Option<(IoOperation, u64)>) -> Self {
        let counted = fault.map(|(operation, number)| CountedFault {
            operation,
            number,
            lasting: Lasting::Once,
            errno: EIO,
        });
        let mut faults = None;
        let recorder = RecordDevice::over_layer(Arc::clone(contents), |layer| {
            let plan = FaultPlan { counted, ..FaultPlan::default() };
            let device = Arc::new(FaultDevice::new(layer, plan));
            Arc::clone(faults.insert(device)) as SharedDevice
        });
        Self { faults: faults.expect("the layer was wrapped"), recorder: Arc::new(recorder) }
    }
}

/// Returns what a power cut leaves that keeps or loses all volatile writes.
pub fn rebuilt(recorder: &RecordDevice, keeps_volatile: bool) -> RebuiltDevice {
    let recording = recorder.recording();
    let end = recording.crash_points().end - 1;
    Replay::new(&recording).device(end, |_, _| keeps_volatile).unwrap()
}

/// Recovers a volume of f2fs after a power cut that keeps or loses all volatile writes, and checks
/// it. Returns its device.
pub fn after_cut(
    kind: &Kind,
    recorder: &RecordDevice,
    keeps_volatile: bool,
    place: &str,
) -> RebuiltDevice {
    let place = format!("{place}, cut off: {keeps_volatile}");
    let rebuilt = rebuilt(recorder, keeps_volatile);
    kind.try_open(rebuilt.device(), true).unwrap().close().unwrap();
    assert_eq!(findings(rebuilt.device()), [""; 0], "{place}");
    if can_fsck_f2fs_read(&rebuilt) {
        assert_eq!(complaint_of_fsck_f2fs(&rebuilt), None, "{place}");
    }
    rebuilt
}

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
    /// Makes a volume on a device on which the request with a number, of all of an operation, fails
    /// once.
    pub fn new(kind: &'static Kind, fault: Option<(IoOperation, u64)>) -> Self {
        let Faulty { faults, recorder } = Faulty::new(&kind.contents(), fault);
        let volume = kind.open(recorder.clone());
        let node = create(&volume, "/file").unwrap();
        let files = [(); 2].map(|()| node.open_for(WRITE).unwrap());
        volume.sync().unwrap();
        Self { kind, faults, recorder, volume, node, files }
    }

    /// Returns the contents of `/file` after a power cut that keeps or loses all volatile writes.
    /// Of f2fs, checks the volume after its recovery.
    pub fn contents_after_cut(&self, keeps_volatile: bool) -> Vec<u8> {
        let rebuilt = rebuilt(&self.recorder, keeps_volatile);
        let found = self.contents_on(rebuilt.device());
        if *self.kind == Kind::Ext4 {
            return found;
        }
        let place = format!("{:?}", self.kind);
        let recovered = after_cut(self.kind, &self.recorder, keeps_volatile, &place);
        let again = self.contents_on(recovered.device());
        assert!(again == found, "{:?}, {keeps_volatile}: recovered in place", self.kind);
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
