//! The `-o` list. Not here: how each way of mounting passes the options on.

/// Whether requests travel through io_uring.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum IoUring {
    /// Where the kernel offers it.
    #[default]
    Auto,
    /// Never.
    Off,
    /// Always: without it there is no mount.
    On,
}

/// Mount options.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountOptions {
    /// The volume can be written to.
    pub writable: bool,
    /// Users other than the one who mounts have access, as far as modes and ACLs allow.
    pub allow_other: bool,
    /// Setuid and setgid count. Off unless asked for: the image may be anybody's.
    pub suid: bool,
    /// Device files can be opened. Off unless asked for.
    pub dev: bool,
    /// Programs can be executed.
    pub exec: bool,
    /// What the mount shows as its source instead of the image's path.
    pub fsname: Option<String>,
    /// How requests travel.
    pub io_uring: IoUring,
    /// The kernel collects what is written, and has it written later.
    pub writeback: bool,
    /// Neither the kernel nor the volume keeps what is read and written. Of the volume, whoever opens it
    /// sees to that.
    pub uncached: bool,
    /// No processor of the host sleeps while requests follow each other closely.
    pub low_latency: bool,
    /// The device is told of blocks that are freed. Nothing of the mount's: whoever opens the volume
    /// sees to it.
    pub discard: bool,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            writable: false,
            allow_other: false,
            suid: false,
            dev: false,
            exec: true,
            fsname: None,
            io_uring: IoUring::Auto,
            writeback: false,
            uncached: false,
            low_latency: false,
            discard: false,
        }
    }
}

/// What is wrong with the list.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OptionError {
    /// No such option.
    #[error("unknown mount option `{0}`")]
    Unknown(String),
    /// The option takes no value, or needs one.
    #[error("mount option `{0}` {1}")]
    Value(String, &'static str),
}

impl MountOptions {
    /// Refuses options that exclude each other.
    pub fn check(&self) -> Result<(), OptionError> {
        if self.uncached && self.writeback {
            return Err(OptionError::Value(
                "uncached".to_owned(),
                "cannot be together with `writeback`",
            ));
        }
        Ok(())
    }

    /// Takes in a comma-separated list, as it follows `-o`. Later options override earlier ones.
    pub fn add(&mut self, list: &str) -> Result<(), OptionError> {
        for option in list.split(',').filter(|option| !option.is_empty()) {
            let (name, value) = match option.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (option, None),
            };
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

    /// Sets an option that needs a value. False when it is none.
    fn set_value(&mut self, name: &str, value: Option<&str>) -> Result<bool, OptionError> {
        let wrong = |what| OptionError::Value(name.to_owned(), what);
        match name {
            "fsname" => {
                let value = value.filter(|value| !value.is_empty());
                self.fsname = Some(value.ok_or_else(|| wrong("needs a value"))?.to_owned());
            }
            "io_uring" => {
                self.io_uring = match value {
                    Some("auto") => IoUring::Auto,
                    Some("off") => IoUring::Off,
                    Some("on") => IoUring::On,
                    _ => return Err(wrong("is `auto`, `off` or `on`")),
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn set(&mut self, name: &str, option: &str) -> Result<(), OptionError> {
        match name {
            // What is so anyway: access is always checked by the kernel, and reading writes nothing.
            "default_permissions" | "defaults" | "noatime" | "nodiratime" | "relatime" => {}
            "ro" => self.writable = false,
            "rw" => self.writable = true,
            "allow_other" => self.allow_other = true,
            "suid" => self.suid = true,
            "nosuid" => self.suid = false,
            "dev" => self.dev = true,
            "nodev" => self.dev = false,
            "exec" => self.exec = true,
            "noexec" => self.exec = false,
            "writeback" => self.writeback = true,
            "discard" => self.discard = true,
            "nodiscard" => self.discard = false,
            "low_latency" => self.low_latency = true,
            "nowriteback" => self.writeback = false,
            "uncached" => self.uncached = true,
            "nouncached" => self.uncached = false,
            _ => return Err(OptionError::Unknown(option.to_owned())),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(list: &str) -> Result<MountOptions, OptionError> {
        let mut options = MountOptions::default();
        options.add(list).map(|()| options)
    }

    #[test]
    fn the_defaults_trust_nothing_in_the_image() {
        let options = parse("ro,default_permissions,,noatime").unwrap();
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
        assert_eq!(parse("io_uring=on,io_uring=off").unwrap().io_uring, IoUring::Off);
        assert!(
            parse("writeback").unwrap().writeback
                && !parse("writeback,nowriteback").unwrap().writeback
        );
        assert!(
            parse("uncached").unwrap().uncached && !parse("uncached,nouncached").unwrap().uncached
        );
        assert!(parse("writeback,uncached,nowriteback").unwrap().check().is_ok());
        assert!(parse("writeback,uncached").unwrap().check().is_err());
    }

    #[test]
    fn what_is_not_known_is_refused_by_name() {
        for (list, complaint) in [
            ("ro,frobnicate", "unknown mount option `frobnicate`"),
            ("umask=022", "unknown mount option `umask=022`"),
            ("ro=1", "mount option `ro` takes no value"),
            ("fsname=", "mount option `fsname` needs a value"),
            ("fsname", "mount option `fsname` needs a value"),
            ("io_uring", "mount option `io_uring` is `auto`, `off` or `on`"),
            ("io_uring=yes", "mount option `io_uring` is `auto`, `off` or `on`"),
            ("writeback=1", "mount option `writeback` takes no value"),
        ] {
            assert_eq!(parse(list).unwrap_err().to_string(), complaint);
        }
    }
}
