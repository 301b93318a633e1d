//! Parser of the `-o` list of `bifolio mount`. Not here: which options there are (`table`), and
//! options of the transport (`fuse::MountOptions`).

pub mod defaults;
mod ext4;
mod f2fs;
mod generic;
pub mod table;

use std::time::Duration;

use fuse::{Confinement, MountOptions, OptionError, split_option};
use vfs::{
    ErrorPolicy, F2fsAlgorithm as Algorithm, F2fsCompressedNames as CompressedNames,
    F2fsCompression as Compression, F2fsMode as Mode, VolumeOptions,
};

use self::table::{Disposition, Formats, NotFound};
use crate::images::confinement::parse_layer;

/// All options of an `-o` list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// Options of the transport. Some of them also apply to the volume.
    pub mount: MountOptions,
    /// The option by which the volume is read without recovery, if there is one.
    pub no_recovery: Option<String>,
    /// The loop device that was asked for, which the kernel chooses.
    pub ignored_loop: Option<String>,
    /// The layers of confinement that the options leave.
    pub confinement: Confinement,
    /// Options of the volume only.
    volume: VolumeMountOptions,
    /// The names of all options.
    names: Vec<String>,
    /// The options that only volumes of one format have.
    of_format: Vec<(String, Formats)>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            mount: MountOptions::default(),
            no_recovery: None,
            ignored_loop: None,
            confinement: Confinement::FULL,
            volume: VolumeMountOptions::default(),
            names: Vec::new(),
            of_format: Vec::new(),
        }
    }
}

/// Options that apply only to the volume.
#[derive(Clone, PartialEq, Eq, Debug)]
struct VolumeMountOptions {
    /// The time after which written data is durable without a sync; zero for the default.
    commit_interval: Duration,
    /// Whether changes of names in directories are durable before the call returns.
    dirsync: bool,
    /// The reaction to corruption, instead of the policy that the volume stores.
    errors: Option<ErrorPolicy>,
    /// Whether freed blocks are discarded, instead of the volume's default.
    discard: Option<bool>,
    /// Whether new files get the group of their directory, instead of the volume's default.
    bsd_groups: Option<bool>,
    /// Whether data that replaces the contents of a file is written back.
    auto_da_alloc: bool,
    /// Where data of f2fs is written that needs new blocks.
    mode: Mode,
    /// Whether segments of f2fs are cleaned while nothing else is done.
    background_gc: bool,
    /// How new files of f2fs are compressed.
    compression: Compression,
    /// The new files of f2fs that are compressed, or are not, whatever their directory says.
    compressed_names: CompressedNames,
}

impl Default for VolumeMountOptions {
    fn default() -> Self {
        Self {
            commit_interval: Duration::ZERO,
            dirsync: false,
            errors: None,
            discard: None,
            bsd_groups: None,
            auto_da_alloc: true,
            mode: Mode::default(),
            background_gc: true,
            compression: Compression::default(),
            compressed_names: CompressedNames::default(),
        }
    }
}

impl Options {
    /// Adds the options of a comma-separated list. Later options override earlier ones.
    pub fn add(&mut self, list: &str) -> Result<(), OptionError> {
        list.split(',')
            .filter(|option| !option.is_empty())
            .try_for_each(|option| self.add_one(option))
    }

    fn add_one(&mut self, option: &str) -> Result<(), OptionError> {
        let (name, value) = split_option(option);
        let found = table::find(name, value).map_err(|problem| match problem {
            NotFound::Name => OptionError::Unknown(option.to_owned()),
            NotFound::Value(expected) => OptionError::Expected(name.to_owned(), expected),
        })?;
        let refused = |why: String| Err(OptionError::Refused(option.to_owned(), why));
        match found.disposition {
            Disposition::Refused(why) => return refused(why.to_owned()),
            Disposition::Flag(flag) => {
                return refused(format!(
                    "only for mount(8) and fstab; use {flag} of `bifolio mount`"
                ));
            }
            Disposition::Accepted(_) => {}
            Disposition::Honoured => self.honour(option)?,
        }
        self.names.push(name.to_owned());
        if matches!(found.formats, Formats::Ext4 | Formats::F2fs) {
            self.of_format.push((option.to_owned(), found.formats));
        }
        Ok(())
    }

    /// Gives an option its effect.
    fn honour(&mut self, option: &str) -> Result<(), OptionError> {
        let (name, value) = split_option(option);
        match (name, value) {
            ("noload" | "norecovery" | "disable_roll_forward", None) => {
                self.no_recovery = Some(name.to_owned());
            }
            ("no_confine", layer) => {
                let left = layer.map_or(Ok(Confinement::NONE), parse_layer);
                let left = left.map_err(|expected| {
                    OptionError::Refused(
                        option.to_owned(),
                        format!("{expected}, one by each no_confine="),
                    )
                })?;
                self.confinement = self.confinement.and(left);
            }
            ("loop", Some(value)) => {
                self.ignored_loop = Some(value.to_owned());
                self.mount.add(name)?;
            }
            _ if self.volume.set(option)? => {}
            _ => self.mount.add(option)?,
        }
        Ok(())
    }

    /// Checks the options together. Errors: some exclude each other.
    pub fn check(&self) -> Result<(), OptionError> {
        self.mount.check()?;
        match &self.no_recovery {
            Some(name) if self.mount.writable => {
                let why = "needs `ro`: an image must be recovered before it is changed";
                Err(OptionError::Value(name.clone(), why))
            }
            _ => Ok(()),
        }
    }

    /// Checks that a volume of the format `name` can have all options, as Linux does.
    pub fn check_format(&self, name: &str) -> Result<(), OptionError> {
        let other = self.of_format.iter().find(|(_, formats)| !formats.has(name));
        other.map_or(Ok(()), |(option, formats)| {
            let why = format!("an option of {}; the volume is {name}", formats.name());
            Err(OptionError::Refused(option.clone(), why))
        })
    }

    /// Returns the names of all options.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Copies the options that apply to the volume to `options`.
    pub fn apply(&self, options: &mut VolumeOptions) {
        options.access = self.mount.access;
        options.sync = self.mount.sync;
        options.commit_interval = self.volume.commit_interval;
        options.dirsync = self.volume.dirsync;
        options.errors = self.volume.errors;
        options.discard = self.volume.discard;
        options.bsd_groups = self.volume.bsd_groups;
        options.auto_da_alloc = self.volume.auto_da_alloc;
        options.f2fs.mode = self.volume.mode;
        options.f2fs.cleans_in_background = self.volume.background_gc;
        options.f2fs.compression = self.volume.compression;
        options.f2fs.compressed_names = self.volume.compressed_names.clone();
    }
}

impl VolumeMountOptions {
    /// Sets an option. Returns false if it is not an option of the volume.
    fn set(&mut self, option: &str) -> Result<bool, OptionError> {
        let (name, value) = split_option(option);
        let wrong = |what| OptionError::Value(name.to_owned(), what);
        let switch = match name {
            "errors" => {
                self.errors = match value {
                    Some("continue") => Some(ErrorPolicy::Continue),
                    // A server cannot panic the kernel.
                    Some("remount-ro" | "panic") => Some(ErrorPolicy::ReadOnly),
                    _ => return Err(wrong("must be `continue`, `remount-ro` or `panic`")),
                };
                return Ok(true);
            }
            "commit" => {
                let seconds = value.and_then(|value| value.parse::<u32>().ok());
                let seconds = seconds.ok_or_else(|| wrong("needs a number of seconds"))?;
                self.commit_interval = Duration::from_secs(seconds.into());
                return Ok(true);
            }
            "mode" => {
                self.mode = match value {
                    Some("adaptive") => Mode::Adaptive,
                    Some("lfs") => Mode::Lfs,
                    _ => return Err(wrong("must be `adaptive` or `lfs`")),
                };
                return Ok(true);
            }
            "compress_algorithm" => {
                let (algorithm, level) = match value.and_then(|value| value.split_once(':')) {
                    Some((algorithm, level)) => (Some(algorithm), Some(level)),
                    None => (value, None),
                };
                self.compression.algorithm = match algorithm {
                    Some("lz4") => Algorithm::Lz4,
                    Some("zstd") => Algorithm::Zstd,
                    Some("lzo") => Algorithm::Lzo,
                    Some("lzo-rle") => Algorithm::LzoRle,
                    _ => return Err(wrong("must be `lz4`, `zstd`, `lzo` or `lzo-rle`")),
                };
                // There is one level here, but Linux compresses with the others.
                let levels = match self.compression.algorithm {
                    Algorithm::Lz4 => Some(3..=16),
                    Algorithm::Zstd => Some(1..=22),
                    Algorithm::Lzo | Algorithm::LzoRle => None,
                };
                let is_level = |level: &str| {
                    let level = level.parse::<u8>().ok();
                    level.is_some_and(|level| levels.is_some_and(|levels| levels.contains(&level)))
                };
                if !level.is_none_or(is_level) {
                    return Err(wrong("takes a level only for lz4 (3 to 16) and zstd (1 to 22)"));
                }
                return Ok(true);
            }
            "compress_log_size" => {
                let log = value.and_then(|value| value.parse().ok());
                self.compression.log_cluster_size = log
                    .filter(|log| (2..=8).contains(log))
                    .ok_or_else(|| wrong("must be a number from 2 to 8"))?;
                return Ok(true);
            }
            "compress_extension" => {
                let CompressedNames { compressed, uncompressed } = &mut self.compressed_names;
                add_extension(value, compressed, uncompressed).map_err(wrong)?;
                return Ok(true);
            }
            "nocompress_extension" => {
                if value == Some(CompressedNames::ALL_NAMES) {
                    return Err(wrong("needs an extension"));
                }
                let CompressedNames { compressed, uncompressed } = &mut self.compressed_names;
                add_extension(value, uncompressed, compressed).map_err(wrong)?;
                return Ok(true);
            }
            "background_gc" => {
                self.background_gc = match value {
                    // The background does not wait for the cleaning in either way.
                    Some("on" | "sync") => true,
                    Some("off") => false,
                    _ => return Err(wrong("must be `on`, `off` or `sync`")),
                };
                return Ok(true);
            }
            // The number is one of ext4 in Linux.
            "auto_da_alloc" if value.is_some() => {
                let number = value.and_then(|value| value.parse::<u32>().ok());
                let number = number.ok_or_else(|| wrong("must be 0 or 1, if it has a value"))?;
                self.auto_da_alloc = number != 0;
                return Ok(true);
            }
            "discard" | "nodiscard" if value.is_none() => {
                self.discard = Some(name == "discard");
                return Ok(true);
            }
            "grpid" | "bsdgroups" | "nogrpid" | "sysvgroups" if value.is_none() => {
                self.bsd_groups = Some(matches!(name, "grpid" | "bsdgroups"));
                return Ok(true);
            }
            "discard" | "nodiscard" => return Err(wrong("takes no value")),
            "compress_chksum" => &mut self.compression.has_checksums,
            "dirsync" | "nodirsync" => &mut self.dirsync,
            "auto_da_alloc" | "noauto_da_alloc" => &mut self.auto_da_alloc,
            _ => return Ok(false),
        };
        if value.is_some() {
            return Err(wrong("takes no value"));
        }
        *switch = !name.starts_with("no");
        Ok(true)
    }
}

/// Adds an extension to `list`. Errors are what is wrong with it.
fn add_extension(
    extension: Option<&str>,
    list: &mut Vec<String>,
    other: &[String],
) -> Result<(), &'static str> {
    // As in Linux.
    const BYTES_MAX: usize = 7;
    const COUNT_MAX: usize = 16;
    let extension = extension.filter(|extension| !extension.is_empty());
    let extension = extension.ok_or("needs an extension")?;
    if extension.len() > BYTES_MAX {
        return Err("must have 7 bytes at most");
    }
    let is_same = |one: &String| one.eq_ignore_ascii_case(extension);
    if other.iter().any(is_same) {
        return Err("names an extension that the opposite option also names");
    }
    if list.iter().any(is_same) {
        return Ok(());
    }
    if list.len() == COUNT_MAX {
        return Err("can be given 16 times at most");
    }
    list.push(extension.to_owned());
    Ok(())
}

#[cfg(test)]
mod tests {
    use vfs::AccessTimes;

    use super::*;

    fn parse(list: &str) -> Result<Options, OptionError> {
        let mut options = Options::default();
        options.add(list).map(|()| options)
    }

    #[test]
    fn the_volume_gets_its_own_options_and_shared_options() {
        let list = "rw,sync,strictatime,commit=7,dirsync,errors=panic,discard,noauto_da_alloc,nogrpid,bsdgroups";
        let list = format!("{list},mode=lfs,background_gc=off,compress_chksum");
        let list = format!("{list},compress_algorithm=zstd:3,compress_log_size=8");
        let list = format!("{list},compress_extension=so,compress_extension=*");
        let list = format!("{list},nocompress_extension=gz,compress_extension=SO");
        let options = parse(&list).unwrap();
        assert!(options.mount.writable);
        let mut volume = VolumeOptions::default();
        options.apply(&mut volume);
        assert_eq!(volume.access.times, AccessTimes::Always);
        assert_eq!(volume.commit_interval, Duration::from_secs(7));
        assert_eq!(volume.errors, Some(ErrorPolicy::ReadOnly));
        assert_eq!((volume.f2fs.mode, volume.f2fs.cleans_in_background), (Mode::Lfs, false));
        let compression =
            Compression { algorithm: Algorithm::Zstd, log_cluster_size: 8, has_checksums: true };
        assert_eq!(volume.f2fs.compression, compression);
        assert_eq!(volume.f2fs.compressed_names.compressed, ["so", "*"]);
        assert_eq!(volume.f2fs.compressed_names.uncompressed, ["gz"]);
        assert!(volume.sync && volume.dirsync && !volume.auto_da_alloc);
        assert_eq!((volume.discard, volume.bsd_groups), (Some(true), Some(true)));
    }

    #[test]
    fn later_options_override_earlier_ones() {
        let list = "dirsync,noauto_da_alloc,sync,commit=7,mode=lfs,background_gc=off";
        assert_ne!(parse(list).unwrap(), Options::default());
        let list = format!("{list},nodirsync,auto_da_alloc,async,commit=0");
        let list = format!("{list},mode=adaptive,background_gc=on");
        let (options, default) = (parse(&list).unwrap(), Options::default());
        assert_eq!((options.mount, options.volume), (default.mount, default.volume));
        let options = parse("auto_da_alloc=0,auto_da_alloc=1,background_gc=off,background_gc=sync");
        assert_eq!(options.unwrap().volume, VolumeMountOptions::default());
        let errors = parse("errors=remount-ro,errors=continue").unwrap().volume.errors;
        assert_eq!(errors, Some(ErrorPolicy::Continue));
    }

    #[test]
    fn defaults_equal_those_of_volumes() {
        let (mut options, default) = (VolumeOptions::default(), VolumeOptions::default());
        parse("").unwrap().apply(&mut options);
        assert_eq!(options.commit_interval, default.commit_interval);
        assert_eq!(options.errors, default.errors);
        assert_eq!(options.f2fs.mode, default.f2fs.mode);
        assert_eq!(options.f2fs.cleans_in_background, default.f2fs.cleans_in_background);
        assert_eq!(options.f2fs.compression, default.f2fs.compression);
        assert_eq!(options.f2fs.compressed_names, default.f2fs.compressed_names);
        assert_eq!(
            (options.sync, options.dirsync, options.discard, options.auto_da_alloc),
            (default.sync, default.dirsync, default.discard, default.auto_da_alloc)
        );
    }

    #[test]
    fn wrong_options_are_refused_by_name() {
        for (list, complaint) in [
            ("rw,frobnicate", "unknown mount option `frobnicate`"),
            ("commit", "mount option `commit` needs a number of seconds"),
            ("commit=soon", "mount option `commit` needs a number of seconds"),
            ("errors=ignore", "mount option `errors` must be `continue`, `remount-ro` or `panic`"),
            ("mode=fast", "mount option `mode` must be `adaptive` or `lfs`"),
            ("background_gc=no", "mount option `background_gc` must be `on`, `off` or `sync`"),
            ("bsddf=1", "mount option `bsddf` must be `bsddf`"),
            ("data=x", "mount option `data` must be `data=ordered|writeback` or `data=journal`"),
            ("resuid=root", "mount option `resuid` must be `resuid=N`"),
            (
                "compress_algorithm=gzip",
                "mount option `compress_algorithm` must be `lz4`, `zstd`, `lzo` or `lzo-rle`",
            ),
            (
                "compress_algorithm=lz4:2",
                "mount option `compress_algorithm` takes a level only for lz4 (3 to 16) and zstd (1 to 22)",
            ),
            (
                "compress_log_size=9",
                "mount option `compress_log_size` must be a number from 2 to 8",
            ),
            ("compress_extension", "mount option `compress_extension` needs an extension"),
            ("nocompress_extension=*", "mount option `nocompress_extension` needs an extension"),
            (
                "compress_extension=longname",
                "mount option `compress_extension` must have 7 bytes at most",
            ),
            (
                "compress_extension=so,nocompress_extension=SO",
                "mount option `nocompress_extension` names an extension that the opposite option also names",
            ),
            ("discard=1", "mount option `discard` takes no value"),
            ("rw=1", "mount option `rw` takes no value"),
        ] {
            assert_eq!(parse(list).unwrap_err().to_string(), complaint, "{list}");
        }
    }

    /// Returns options that a row of the table stands for.
    fn examples(option: &str) -> Vec<String> {
        let (name, values) = match option.split_once("[=") {
            Some((name, values)) => (name, values.trim_end_matches(']')),
            None => match option.split_once('=') {
                Some((name, "")) => return vec![format!("{name}=")],
                Some((name, values)) => (name, values),
                None => return vec![option.replace('*', "a.b=1")],
            },
        };
        let valid = match name {
            "uidmap" | "gidmap" => "0:1000:1",
            "compress_algorithm" => "zstd",
            "compress_log_size" => "4",
            "no_confine" => "landlock",
            _ => "1",
        };
        let values = values.split('|').map(|value| match value {
            "N" => valid.to_owned(),
            value => value.split_once("..").map_or(value, |(_, last)| last).replace("VALUE", valid),
        });
        let bare = option.contains("[=").then(|| name.to_owned());
        values.map(|value| format!("{name}={value}")).chain(bare).collect()
    }

    #[test]
    fn each_option_of_the_table_is_honoured_accepted_or_refused_by_a_sentence() {
        for row in table::rows() {
            for option in row.options.iter().flat_map(|option| examples(option)) {
                let parsed = parse(&option);
                match row.disposition {
                    Disposition::Honoured => {
                        assert!(parsed.is_ok(), "{option}: {parsed:?}");
                    }
                    Disposition::Accepted(_) => {
                        let Options { mount, volume, no_recovery, confinement, .. } =
                            parsed.unwrap();
                        let none = Options::default();
                        assert_eq!((mount, volume), (none.mount, none.volume), "{option}");
                        assert_eq!((no_recovery, confinement), (None, Confinement::FULL));
                    }
                    Disposition::Refused(why) => {
                        let text = format!("mount option `{option}`: {why}");
                        assert_eq!(parsed.unwrap_err().to_string(), text);
                    }
                    Disposition::Flag(flag) => {
                        assert!(parsed.unwrap_err().to_string().contains(flag), "{option}");
                    }
                }
            }
        }
    }

    #[test]
    fn options_of_the_other_format_are_refused() {
        for (list, format, complaint) in [
            ("mode=lfs", "ext4", "mount option `mode=lfs`: an option of f2fs; the volume is ext4"),
            ("rw,noload", "f2fs", "mount option `noload`: an option of ext4; the volume is f2fs"),
            ("bsddf", "f2fs", "mount option `bsddf`: an option of ext4; the volume is f2fs"),
            ("gc_merge", "ext2", "mount option `gc_merge`: an option of f2fs; the volume is ext2"),
        ] {
            let options = parse(list).unwrap();
            assert_eq!(options.check_format(format).unwrap_err().to_string(), complaint);
            let own = if format == "f2fs" { "ext3" } else { "f2fs" };
            assert_eq!(options.check_format(own), Ok(()), "{list}");
        }
        let shared = parse("acl,norecovery,commit=7,discard,barrier=1,nofail").unwrap();
        assert!(shared.check_format("ext4").is_ok() && shared.check_format("f2fs").is_ok());
    }

    #[test]
    fn layers_of_confinement_are_left_out_one_by_one() {
        use fuse::Layer;

        let options = parse("no_confine=landlock,ro,no_confine=limits").unwrap();
        let without = Confinement::FULL.without(Layer::Landlock).without(Layer::Limits);
        assert_eq!(options.confinement, without);
        assert_eq!(parse("no_confine").unwrap().confinement, Confinement::NONE);
        let refused = parse("no_confine=landlock:limits").unwrap_err().to_string();
        assert!(refused.contains("expected no-new-privs, user, landlock"), "{refused}");
    }

    #[test]
    fn an_image_is_changed_only_after_recovery() {
        let refused = parse("rw,noload").unwrap().check().unwrap_err().to_string();
        assert!(refused.starts_with("mount option `noload` needs `ro`"), "{refused}");
        for name in ["noload", "norecovery", "disable_roll_forward"] {
            let options = parse(&format!("ro,{name}")).unwrap();
            assert!(options.check().is_ok() && options.no_recovery.is_some(), "{name}");
        }
    }
}
