//! Which runs of the device a direct request covers, and in what state they are.
//! Not here: the requests.

use base::{DeviceOffset, FileOffset, Result};
use smallvec::SmallVec;

use crate::fill::device_address;
use crate::mapping::{FinishedRange, Iomap, IomapKind, MapRead, MapWrite, Token, map_at, place};

/// One run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Run {
    /// The first byte in the file.
    pub at: u64,
    /// The number of bytes.
    pub length: u64,
    pub kind: IomapKind,
    /// The first byte on the device, of blocks that are there.
    pub address: Option<DeviceOffset>,
    /// The token of a run that is written out of place.
    pub token: Option<Token>,
}

impl Run {
    /// Returns the range of the file, whole blocks.
    fn finished(&self) -> FinishedRange {
        let (offset, length) = (FileOffset(self.at), self.length);
        FinishedRange { offset, length, kind: self.kind, token: self.token }
    }
}

/// The runs that a request covers, in order.
pub(super) type Runs = SmallVec<[Run; 2]>;

/// The runs of bytes `at` to `end` of a file, which lie in it. `None`: the data is inline.
pub(super) fn plan(mapper: &dyn MapRead, at: u64, end: u64) -> Result<Option<Runs>> {
    plan_with(at, end, |here| map_at(mapper, FileOffset(here), end - here).map(Some))
}

/// [`plan`], of what is known without reading from the device. `None`, too, when that is not all.
pub(super) fn plan_known(mapper: &dyn MapRead, at: u64, end: u64) -> Result<Option<Runs>> {
    plan_with(at, end, |here| {
        let map = mapper.map_known(FileOffset(here));
        Ok(map.filter(|map| map.offset.0 <= here && here < map.end()))
    })
}

/// Returns new blocks for bytes `at` to `end` of a file, whole blocks that are written out of place.
pub(super) fn plan_placed(mapper: &dyn MapWrite, at: u64, end: u64) -> Result<Runs> {
    let mut runs = Runs::new();
    let mut here = at;
    while here < end {
        match place(mapper, here..end) {
            Ok(placed) => {
                let (address, token) = (Some(placed.address), Some(placed.token));
                let (length, kind) = (placed.length, IomapKind::Mapped);
                runs.push(Run { at: here, length, kind, address, token });
                here += length;
            }
            Err(error) => {
                let placed: Vec<FinishedRange> = runs.iter().map(Run::finished).collect();
                mapper.unplace(&placed);
                return Err(error);
            }
        }
    }
    Ok(runs)
}

fn plan_with(
    at: u64,
    end: u64,
    mut map: impl FnMut(u64) -> Result<Option<Iomap>>,
) -> Result<Option<Runs>> {
    let mut runs = Runs::new();
    let mut here = at;
    while here < end {
        let Some(map) = map(here)?.filter(|map| map.kind != IomapKind::Inline) else {
            return Ok(None);
        };
        let length = map.end().min(end) - here;
        let address = match map.kind {
            IomapKind::Mapped | IomapKind::Unwritten => Some(device_address(&map, here)?),
            IomapKind::Hole | IomapKind::Delalloc | IomapKind::Inline => None,
        };
        runs.push(Run { at: here, length, kind: map.kind, address, token: None });
        here += length;
    }
    Ok(Some(runs))
}
