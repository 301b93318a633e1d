//! Parser of the `-o` list of `bifolio mount`. Not here: options of the transport (`fuse::MountOptions`).

use std::time::Duration;

use fuse::{MountOptions, OptionError, split_option};
use vfs::{
    ErrorPolicy, F2fsAlgorithm as Algorithm, F2fsCompressedNames as CompressedNames,
    F2fsCompression as Compression, F2fsMode as Mode, VolumeOptions,
};

/// All options of an `-o` list.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// Options of the transport. Some of them also apply to the volume.
    pub mount: MountOptions,
    /// Options of the volume only.
    volume: VolumeMountOptions,
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
    /// Whether freed blocks are discarded.
    discard: bool,
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
            discard: false,
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
        for option in list.split(',').filter(|option| !option.is_empty()) {
            if !self.volume.set(option)? {
                self.mount.add(option)?;
            }
        }
        Ok(())
    }

    /// Copies the options that apply to the volume to `options`.
    pub fn apply(&self, options: &mut VolumeOptions) {
        options.access = self.mount.access;
        options.sync = self.mount.sync;
        options.commit_interval = self.volume.commit_interval;
        options.dirsync = self.volume.dirsync;
        options.errors = self.volume.errors;
        options.discard = self.volume.discard;
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
                // Linux takes a level, too. There is one here.
                let algorithm =
                    value.map(|value| value.split_once(':').map_or(value, |(name, _)| name));
                self.compression.algorithm = match algorithm {
                    Some("lz4") => Algorithm::Lz4,
                    Some("zstd") => Algorithm::Zstd,
                    Some("lzo") => Algorithm::Lzo,
                    Some("lzo-rle") => Algorithm::LzoRle,
                    _ => return Err(wrong("must be `lz4`, `zstd`, `lzo` or `lzo-rle`")),
                };
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
                    Some("on") => true,
                    Some("off") => false,
                    _ => return Err(wrong("must be `on` or `off`")),
                };
                return Ok(true);
            }
            "compress_chksum" => &mut self.compression.has_checksums,
            "dirsync" | "nodirsync" => &mut self.dirsync,
            "discard" | "nodiscard" => &mut self.discard,
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
        let list = "rw,sync,strictatime,commit=7,dirsync,errors=panic,discard,noauto_da_alloc";
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
        assert!(volume.sync && volume.dirsync && volume.discard && !volume.auto_da_alloc);
    }

    #[test]
    fn later_options_override_earlier_ones() {
        let list = "dirsync,discard,noauto_da_alloc,sync,commit=7,mode=lfs,background_gc=off";
        assert_ne!(parse(list).unwrap(), Options::default());
        let list = format!("{list},nodirsync,nodiscard,auto_da_alloc,async,commit=0");
        let list = format!("{list},mode=adaptive,background_gc=on");
        assert_eq!(parse(&list).unwrap(), Options::default());
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
            ("mode=fragment:block", "mount option `mode` must be `adaptive` or `lfs`"),
            ("background_gc=sync", "mount option `background_gc` must be `on` or `off`"),
            (
                "compress_algorithm=gzip",
                "mount option `compress_algorithm` must be `lz4`, `zstd`, `lzo` or `lzo-rle`",
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
}
