//! The description of a volume for users and scripts.

use base::Error;
use base::attributes::{Detail, VolumeInfo};

use crate::ondisk::checkpoint as flags;
use crate::volume::Volume;

/// Flags of a checkpoint that `info` reports, and their names.
const FLAGS: [(u32, &str); 8] = [
    (flags::UNMOUNTED, "unmounted"),
    (flags::ORPHANS, "orphans"),
    (flags::COMPACT_SUMMARIES, "compact summaries"),
    (flags::ERROR, "error"),
    (flags::NEEDS_FSCK, "fsck needed"),
    (flags::LARGE_NAT_BITMAP, "large NAT bitmap"),
    (flags::QUOTA_NEEDS_FSCK, "quota check needed"),
    (flags::DISABLED, "checkpoints disabled"),
];

impl Volume {
    /// Returns the description of the volume: features, sizes, counts and state.
    pub fn info(&self) -> VolumeInfo {
        let geometry = self.geometry();
        let checkpoint = self.checkpoint();
        let raw = &checkpoint.raw;
        let space = self.statfs();
        let set = FLAGS.iter().filter(|(flag, _)| self.checkpoint().has(*flag));
        let state: Vec<&str> = set.map(|(_, name)| *name).collect();
        let counts = self.changed_counts();
        let used =
            |in_checkpoint: u32, more: i64| u64::from(in_checkpoint).saturating_add_signed(more);
        let mut details: Vec<(&'static str, Detail)> = vec![
            ("block_size", geometry.block_size.bytes().into()),
            ("blocks", geometry.block_count.into()),
            ("blocks_free", space.blocks_free.into()),
            ("inodes", space.inodes.into()),
            ("inodes_free", space.inodes_free.into()),
            ("inodes_used", used(raw.valid_inodes.get(), counts.inodes).into()),
            ("nodes_used", used(raw.valid_nodes.get(), counts.nodes).into()),
            ("segments", geometry.main_segments().into()),
            ("segments_free", raw.free_segments.get().into()),
            ("segments_per_section", geometry.segments_per_section.into()),
            ("sections_per_zone", geometry.sections_per_zone.into()),
            ("checkpoint_version", raw.version.get().into()),
            ("checkpoint_state", state.join(", ").into()),
            ("orphans", (self.checkpoint().orphans.len() as u64).into()),
            ("written_by", text(&self.superblock().raw().version).into()),
            ("created_by", text(&self.superblock().raw().initial_version).into()),
        ];
        if let Some(damage) = self.checkpoint_damage() {
            details.push(("checkpoint_packs", damage.into()));
        } else if checkpoint.damage.is_some() {
            let state = "one of two is not complete, as after a crash or a power cut; the other one is used";
            details.push(("checkpoint_packs", state.into()));
        }
        if let Some(recovery) = self.recovery() {
            let (nodes, inodes) = (recovery.nodes_replayed, recovery.inodes_recovered);
            let replayed = format!("{nodes} nodes of {inodes} inodes replayed in memory");
            details.push(("recovery", replayed.into()));
            for (name, count) in [
                ("inodes_created", recovery.inodes_created),
                ("names_added", recovery.names_added),
                ("names_replaced", recovery.names_replaced),
                ("xattrs_kept", recovery.xattrs_kept),
                ("orphans_deleted", recovery.orphans_deleted),
            ] {
                if count > 0 {
                    details.push((name, count.into()));
                }
            }
            for (name, failure) in [
                ("orphans_left", &recovery.orphan_failure),
                ("quota_failure", &recovery.quota_failure),
            ] {
                if let Some(failure) = failure {
                    details.push((name, failure.to_string().into()));
                }
            }
        }
        VolumeInfo {
            format: "f2fs",
            label: self.superblock().label.clone(),
            uuid: geometry.uuid,
            features: geometry.features.names(),
            details,
        }
    }

    /// Returns what is wrong with the checkpoint packs, if it is not what a power cut leaves: then,
    /// the pack that the writer was writing is not complete.
    fn checkpoint_damage(&self) -> Option<String> {
        let checkpoint = self.checkpoint();
        if let Some(error) = &checkpoint.first_block_damage {
            let text = format!(
                "the first block of the last checkpoint is damaged ({error}); its copy at the end of the checkpoint is used, \
                 which Linux and fsck.f2fs do not do: they use the checkpoint before it"
            );
            let restored = "; the block has been restored";
            return Some(if self.writer().is_ok() { text + restored } else { text });
        }
        match &checkpoint.damage {
            Some(error @ Error::Io(_)) => Some(format!(
                "one of the two checkpoint packs cannot be read ({error}), and may be the later one; the other one is used"
            )),
            Some(error) if checkpoint.is_later_lost => Some(format!(
                "the last checkpoint is damaged ({error}); the one before it is used, so that later changes are missing, and \
                 data that they have replaced may be that of other files"
            )),
            _ => None,
        }
    }

    /// Returns a warning for the user if a copy of the superblock, or a checkpoint pack, is damaged
    /// or cannot be read. A pack that is not complete needs none: the device lost power, or the
    /// writer was killed, while the pack was written.
    pub fn warning(&self) -> Option<String> {
        let superblock = self.superblock().damage.as_ref();
        let checkpoint = self.checkpoint();
        let parts = [
            superblock.map(|error| {
                format!("the first superblock is damaged ({error}); its copy is used")
            }),
            self.checkpoint_damage(),
            checkpoint.orphan_damage.as_ref().map(|error| {
                format!(
                    "the list of files without a name is damaged ({error}); they are not left out"
                )
            }),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        (!parts.is_empty()).then(|| parts.join("; "))
    }
}

/// Returns the text in a field that is padded with zeroes, up to the first line break.
fn text(field: &[u8]) -> String {
    let end = field.iter().position(|byte| [0, b'\n'].contains(byte)).unwrap_or(field.len());
    String::from_utf8_lossy(&field[..end]).into_owned()
}
