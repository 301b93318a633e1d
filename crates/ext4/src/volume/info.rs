//! The description of a volume for users and scripts.

use std::sync::Arc;

use base::Error;
use base::attributes::{Detail, Timestamp, VolumeInfo};

use crate::features::Feature;
use crate::ondisk::superblock::{STATE_ERRORS, STATE_ORPHANS, STATE_VALID};
use crate::superblock::error_log::RecordedError;
use crate::volume::Volume;

type Details = Vec<(&'static str, Detail)>;

impl Volume {
    /// Returns the description of the volume: its format, features, sizes, counts and state.
    pub fn info(self: &Arc<Self>) -> VolumeInfo {
        let mut details = Details::new();
        self.describe_size(&mut details);
        self.describe_history(&mut details);
        self.describe_journal(&mut details);
        self.describe_metadata(&mut details);
        self.describe_limits(&mut details);
        VolumeInfo {
            format: self.geometry().features.format_name(),
            label: self.superblock().label.clone(),
            uuid: self.geometry().uuid,
            features: self.geometry().features.names(),
            details,
        }
    }

    fn describe_size(&self, details: &mut Details) {
        let geometry = self.geometry();
        let counts = &self.superblock().counts;
        let space = self.statfs();
        let block_size = geometry.block_size.bytes();
        details.push(("block_size", block_size.into()));
        let cluster_size = u64::from(block_size) << geometry.cluster_shift;
        details.push(("cluster_size", cluster_size.into()));
        details.push(("blocks", geometry.block_count.into()));
        details.push(("blocks_free", space.blocks_free.into()));
        details.push(("blocks_reserved", counts.blocks_reserved.into()));
        details.push(("inodes", geometry.inode_count.into()));
        details.push(("inodes_free", space.inodes_free.into()));
        details.push(("inode_size", geometry.inode_size.into()));
        details.push(("groups", geometry.group_count.into()));
        details.push(("blocks_per_group", geometry.blocks_per_group.into()));
        details.push(("inodes_per_group", geometry.inodes_per_group.into()));
        details.push(("descriptor_size", geometry.descriptor_size.into()));
    }

    fn describe_history(&self, details: &mut Details) {
        let superblock = self.superblock();
        let raw = superblock.raw();
        for (name, time) in [
            ("created", superblock.created()),
            ("last_mounted", superblock.last_mounted()),
            ("last_written", superblock.last_written()),
            ("last_checked", superblock.last_checked()),
        ] {
            if let Some(time) = time {
                details.push((name, utc(time).into()));
            }
        }
        let mounted_on = superblock.last_mounted_on();
        if !mounted_on.is_empty() {
            details
                .push(("last_mounted_on", String::from_utf8_lossy(mounted_on).into_owned().into()));
        }
        if let Some(warning) = self.warning() {
            details.push(("superblock", warning.into()));
        }
        details.push(("mount_count", raw.mnt_count.get().into()));
        details
            .push(("state", state(raw.state.get(), superblock.has(Feature::NeedsRecovery)).into()));
        details.push(("errors_policy", superblock.error_policy().name().into()));
        let errors = self.errors();
        if errors.count > 0 {
            details.push(("errors_found", errors.count.into()));
            for (name, error) in [("first_error", errors.first), ("last_error", errors.last)] {
                if let Some(error) = error {
                    details.push((name, describe_error(&error).into()));
                }
            }
        }
    }

    /// Returns a warning for the user if the volume is read through a copy of its superblock.
    pub fn warning(&self) -> Option<String> {
        let copy = self.copy()?;
        let (block, group) = (copy.block, copy.group);
        let by = format!("copy in block {block} (group {group})");
        let why = match &copy.reason {
            Some(Error::Corrupt(corrupt)) => {
                format!(", since the first one is damaged: {}", corrupt.problem)
            }
            _ => String::new(),
        };
        Some(match self.geometry().copy_in_use {
            Some(_) => {
                format!("{by}{why}; free space, orphans and recorded errors are as old as the copy")
            }
            None => format!("from the journal, which was found by the {by}{why}"),
        })
    }

    /// Returns the damage at which the replay of the journal in memory ended early. A log that a
    /// power cut has torn is not damaged.
    pub(crate) fn journal_damage(&self) -> Option<&Error> {
        let recovery = self.recovery()?;
        recovery.log.damage.as_ref().or(recovery.fast_commit_failure.as_ref())
    }

    fn describe_journal(self: &Arc<Self>, details: &mut Details) {
        let superblock = self.superblock();
        if !superblock.has(Feature::HasJournal) {
            details.push(("journal", "none".into()));
            return;
        }
        match superblock.inodes.journal {
            Some(inode) => {
                details.push(("journal", format!("internal, inode {inode}").into()));
                self.describe_log(details);
            }
            None => details.push(("journal", "external".into())),
        }
        if let Some(recovery) = self.recovery() {
            let transactions = recovery.log.transactions;
            details.push((
                "recovery",
                format!("{transactions} transactions replayed in memory").into(),
            ));
            for (name, count) in [
                ("fast_commits_replayed", recovery.fast_commits as u64),
                ("orphans_deleted", recovery.orphans.deleted.into()),
                ("orphans_truncated", recovery.orphans.truncated.into()),
            ] {
                if count > 0 {
                    details.push((name, count.into()));
                }
            }
            if let Some(failure) = &recovery.fast_commit_failure {
                details.push(("fast_commit_damage", failure.to_string().into()));
            }
            if let Some(failure) = &recovery.orphans.failure {
                details.push(("orphans_left", failure.to_string().into()));
            }
            if let Some(damage) = &recovery.log.damage {
                details.push(("recovery_damage", damage.to_string().into()));
            }
        }
    }

    fn describe_log(self: &Arc<Self>, details: &mut Details) {
        match self.journal(None) {
            Ok(Some(journal)) => {
                let journal = journal.superblock();
                let bytes = u64::from(journal.blocks) << self.geometry().block_size.shift();
                details.push(("journal_bytes", bytes.into()));
                details.push(("journal_features", journal.features.names().join(" ").into()));
                if journal.errno != 0 {
                    let errno = journal.errno;
                    details.push(("journal_error", format!("aborted, errno {errno}").into()));
                }
            }
            Ok(None) => {}
            Err(error) => details.push(("journal_fault", error.to_string().into())),
        }
    }

    fn describe_metadata(&self, details: &mut Details) {
        let superblock = self.superblock();
        let checksums = if superblock.has(Feature::MetadataCsum) {
            "crc32c"
        } else if superblock.has(Feature::UninitBg) {
            "crc16 of group descriptors"
        } else {
            "none"
        };
        details.push(("checksums", checksums.into()));
        if superblock.has(Feature::DirIndex) {
            let hash = match superblock.directory_hash.default_version {
                0 => "legacy",
                1 => "half_md4",
                2 => "tea",
                6 => "siphash",
                _ => "unknown",
            };
            details.push(("directory_hash", hash.into()));
        }
        if superblock.has(Feature::Casefold) {
            let encoding = match superblock.raw().encoding.get() {
                1 => "utf8-12.1.0",
                _ => "unknown",
            };
            details.push(("encoding", encoding.into()));
        }
        for (name, inode) in [
            ("user_quota_inode", superblock.inodes.user_quota),
            ("group_quota_inode", superblock.inodes.group_quota),
            ("project_quota_inode", superblock.inodes.project_quota),
            ("orphan_file_inode", superblock.inodes.orphan_file),
        ] {
            if let Some(inode) = inode {
                details.push((name, inode.0.into()));
            }
        }
    }

    /// Adds features that are refused or only partly supported.
    fn describe_limits(&self, details: &mut Details) {
        if self.superblock().has(Feature::Encrypt) {
            let refused = "contents of encrypted files without their keys";
            details.push(("refused", refused.into()));
        }
        if self.superblock().has(Feature::Casefold) {
            let how = "byte by byte, also in directories that ignore case";
            details.push(("names_matched", how.into()));
        }
    }
}

fn state(bits: u16, needs_recovery: bool) -> String {
    let mut words = vec![if bits & STATE_VALID != 0 { "clean" } else { "not clean" }];
    if bits & STATE_ERRORS != 0 {
        words.push("with errors");
    }
    if bits & STATE_ORPHANS != 0 {
        words.push("orphans being recovered");
    }
    if needs_recovery {
        words.push("needs recovery");
    }
    words.join(", ")
}

/// Returns an error as a line: its time, code and location, as far as they are known.
fn describe_error(error: &RecordedError) -> String {
    let mut text = utc(error.time);
    let mut add = |part: String| text.extend([", ", &part]);
    if let Some(name) = error.code_name() {
        add(name.into());
    }
    if !error.function.is_empty() {
        add(String::from_utf8_lossy(&error.function).into_owned());
    }
    for (name, number) in
        [("line", error.line.into()), ("inode", error.inode.into()), ("block", error.block)]
    {
        if number != 0 {
            add(format!("{name} {number}"));
        }
    }
    text
}

/// Returns the time in UTC, in the format of RFC 3339. Superblock times have 40 bits and are not
/// negative.
fn utc(time: Timestamp) -> String {
    let (days, second) = (time.seconds.div_euclid(86_400), time.seconds.rem_euclid(86_400));
    let (year, month, day) = civil_from_days(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Returns the Gregorian date `days` after 1970-01-01. Years are counted from March, so that the
/// leap day is the last of its year; 400 years have 146097 days.
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // From March on, the lengths of months repeat: 31, 30, 31, 30, 31 days.
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_formatted_in_utc() {
        let at = |seconds| utc(Timestamp { seconds, nanoseconds: 0 });
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_827_696), "2000-02-29T12:34:56Z");
        assert_eq!(at(1_600_000_000), "2020-09-13T12:26:40Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00Z");
        assert_eq!(at((1 << 40) - 1), "36812-02-20T00:36:15Z");
    }
}
