//! Parser of the list for `-o`. Not here: the meaning of the options (`options`).

use vfs::AccessTimes;

use super::options::{MountOptions, Preference};
use crate::owners::IdRange;

/// An error in a list of options.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OptionError {
    /// There is no option with this name.
    #[error("unknown mount option `{0}`")]
    Unknown(String),
    /// The option's value is missing, superfluous or invalid, or the option excludes another one.
    #[error("mount option `{0}` {1}")]
    Value(String, &'static str),
    /// The option has another value than it can have: which are these.
    #[error("mount option `{0}` {1}")]
    Expected(String, String),
    /// The option is refused, for this reason.
    #[error("mount option `{0}`: {1}")]
    Refused(String, String),
}

/// Returns the name of an option and its value, if it has one.
pub fn split_option(option: &str) -> (&str, Option<&str>) {
    match option.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (option, None),
    }
}

impl MountOptions {
    /// Sets the options of a comma-separated list, the argument of `-o`. Later options override
    /// earlier ones.
    pub fn add(&mut self, list: &str) -> Result<(), OptionError> {
        for option in list.split(',').filter(|option| !option.is_empty()) {
            let (name, value) = split_option(option);
            if self.set_value(name, value)? {
                continue;
            }
            self.set(name, option)?;
            if value.is_some() {
                return Err(OptionError::Value(name.to_owned(), "takes no value"));
            }
        }
        Ok(())
    }

    /// Sets an option that needs a value. Returns false if `name` is not such an option.
    fn set_value(&mut self, name: &str, value: Option<&str>) -> Result<bool, OptionError> {
        let wrong = |what| OptionError::Value(name.to_owned(), what);
        match name {
            "fsname" => {
                let value = value.filter(|value| !value.is_empty());
                self.fsname = Some(value.ok_or_else(|| wrong("needs a value"))?.to_owned());
            }
            "io_uring" => {
                self.io_uring = match value {
                    Some("auto") => Preference::Auto,
                    Some("off") => Preference::Off,
                    Some("on") => Preference::On,
                    _ => return Err(wrong("must be `auto`, `off` or `on`")),
                }
            }
            "owner" => {
                self.owner_mapped = match value {
                    Some("image") => false,
                    Some("mapped") => true,
                    _ => return Err(wrong("must be `image` or `mapped`")),
                }
            }
            "uidmap" => add_range(&mut self.users, value).map_err(wrong)?,
            "gidmap" => add_range(&mut self.groups, value).map_err(wrong)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Sets an option without a value. `option` is its whole text, for the error message.
    fn set(&mut self, name: &str, option: &str) -> Result<(), OptionError> {
        match name {
            // Accepted without effect: only `owner` decides whether the kernel checks access.
            "default_permissions" | "defaults" => {}
            "noatime" => self.access.times = AccessTimes::Never,
            "atime" | "relatime" | "norelatime" | "nostrictatime" => {
                self.access.times = AccessTimes::Relative;
            }
            "strictatime" => self.access.times = AccessTimes::Always,
            "nodiratime" => self.access.directories = false,
            "diratime" => self.access.directories = true,
            "lazytime" => self.access.lazy = true,
            "nolazytime" => self.access.lazy = false,
            "ro" => self.writable = false,
            "rw" => self.writable = true,
            "allow_other" => self.allow_other = true,
            "noallow_other" => self.allow_other = false,
            "suid" => self.suid = true,
            "nosuid" => self.suid = false,
            "dev" => self.dev = true,
            "nodev" => self.dev = false,
            "exec" => self.exec = true,
            "noexec" => self.exec = false,
            "writeback" => self.writeback = true,
            "sync" => self.sync = true,
            "async" => self.sync = false,
            "loop" => self.loop_device = true,
            "noloop" => self.loop_device = false,
            "low_latency" => self.low_latency = Preference::On,
            "nolow_latency" => self.low_latency = Preference::Off,
            "nowriteback" => self.writeback = false,
            "uncached" => self.uncached = true,
            "nouncached" => self.uncached = false,
            "idmap" => self.idmapped = true,
            "noidmap" => self.idmapped = false,
            _ => return Err(OptionError::Unknown(option.to_owned())),
        }
        Ok(())
    }
}

/// Adds the range that is the value of `uidmap` or `gidmap`.
fn add_range(ranges: &mut Vec<IdRange>, value: Option<&str>) -> Result<(), &'static str> {
    let range = value.and_then(IdRange::parse).ok_or("must be three numbers: IMAGE:HOST:COUNT")?;
    if ranges.iter().any(|other| other.overlaps(&range)) {
        return Err("maps an id twice");
    }
    ranges.push(range);
    Ok(())
}

#[cfg(test)]
mod tests {
    use vfs::AccessOptions;

    use super::*;

    fn parse(list: &str) -> Result<MountOptions, OptionError> {
        let mut options = MountOptions::default();
        options.add(list).map(|()| options)
    }

    #[test]
    fn the_defaults_trust_nothing_in_the_image() {
        let options = parse("ro,default_permissions,,relatime").unwrap();
        assert_eq!(options, MountOptions::default());
        assert!(
            !options.writable
                && !options.suid
                && !options.dev
                && !options.allow_other
                && options.exec
        );
    }

    #[test]
    fn later_options_override_earlier_ones() {
        let options = parse("allow_other,suid,nosuid,nodev,dev,noexec,fsname=a=b").unwrap();
        assert!(options.allow_other && !options.suid && options.dev && !options.exec);
        assert!(parse("ro,rw").unwrap().writable && !parse("rw,ro").unwrap().writable);
        assert_eq!(options.fsname.as_deref(), Some("a=b"));
        assert_eq!(parse("io_uring=on,io_uring=off").unwrap().io_uring, Preference::Off);
        assert!(
            parse("writeback").unwrap().writeback
                && !parse("writeback,nowriteback").unwrap().writeback
        );
        assert!(
            parse("uncached").unwrap().uncached && !parse("uncached,nouncached").unwrap().uncached
        );
        assert_eq!(parse("low_latency,nolow_latency").unwrap().low_latency, Preference::Off);
        assert!(parse("sync").unwrap().sync && !parse("sync,async").unwrap().sync);
        assert!(parse("writeback,uncached,nowriteback").unwrap().check().is_ok());
        assert!(parse("writeback,uncached").unwrap().check().is_err());
        let access = parse("strictatime,nodiratime,lazytime").unwrap().access;
        assert_eq!(
            access,
            AccessOptions { times: AccessTimes::Always, directories: false, lazy: true }
        );
        let access = parse("strictatime,nodiratime,lazytime,noatime,diratime,nolazytime").unwrap();
        assert_eq!(access.access, AccessOptions::default());
    }

    #[test]
    fn owner_mappings_are_one_to_one_and_do_not_combine() {
        let options = parse("uidmap=0:1000:1,uidmap=1:100000:65535,gidmap=0:7:1").unwrap();
        let owners = options.owners(1, 1);
        let user = |image| owners.users.to_host(image);
        assert_eq!((user(0), user(1), owners.groups.to_host(0)), (1000, 100_000, 7));
        assert!(options.checks_access() && options.check().is_ok());
        let mapped = parse("owner=mapped").unwrap();
        assert!(!mapped.checks_access() && mapped.check().is_ok());
        assert_eq!(mapped.owners(1000, 100).groups.to_image(100), 0);
        assert_eq!(parse("owner=mapped,owner=image").unwrap(), MountOptions::default());
        for other in ["allow_other", "uidmap=0:1:1", "gidmap=0:1:1", "idmap"] {
            assert!(parse(&format!("owner=mapped,{other}")).unwrap().check().is_err(), "{other}");
        }
    }

    #[test]
    fn invalid_options_are_refused_by_name() {
        for (list, message) in [
            ("ro,frobnicate", "unknown mount option `frobnicate`"),
            // An option of the volume, which is parsed elsewhere.
            ("commit=7", "unknown mount option `commit=7`"),
            ("umask=022", "unknown mount option `umask=022`"),
            ("ro=1", "mount option `ro` takes no value"),
            ("fsname=", "mount option `fsname` needs a value"),
            ("fsname", "mount option `fsname` needs a value"),
            ("io_uring", "mount option `io_uring` must be `auto`, `off` or `on`"),
            ("io_uring=yes", "mount option `io_uring` must be `auto`, `off` or `on`"),
            ("owner=me", "mount option `owner` must be `image` or `mapped`"),
            ("uidmap=1:2", "mount option `uidmap` must be three numbers: IMAGE:HOST:COUNT"),
            ("uidmap=1:2:3,uidmap=9:4:1", "mount option `uidmap` maps an id twice"),
            ("gidmap=1:2:3,gidmap=3:9:1", "mount option `gidmap` maps an id twice"),
            ("writeback=1", "mount option `writeback` takes no value"),
        ] {
            assert_eq!(parse(list).unwrap_err().to_string(), message);
        }
    }
}
