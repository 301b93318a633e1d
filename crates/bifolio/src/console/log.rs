//! Log of the library's warnings and errors on standard error and, for background processes, in the
//! system log and in a file. Not here: failures of a command (`console`).

use std::fmt::{self, Display, Write as _};
use std::fs::File;
use std::io::Write as _;
use std::sync::Arc;
use std::time::SystemTime;

use base::attributes::Timestamp;
use fuse::{Severity, SystemLog};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::format::time;

/// Log on standard error, in the system log once that is open, and, optionally, in a file.
#[derive(Clone, Debug, Default)]
pub struct Log {
    file: Option<Arc<File>>,
    system: Arc<SystemLog>,
}

impl Log {
    /// Creates a log. `file` must be open for appending.
    pub fn new(file: Option<File>) -> Self {
        Self { file: file.map(Arc::new), system: Arc::default() }
    }

    /// Returns the system log.
    pub fn system(&self) -> &Arc<SystemLog> {
        &self.system
    }

    /// Starts logging. Panics are also logged to the file.
    pub fn start(&self) {
        // Fails only if there is a subscriber already.
        let _ = tracing::subscriber::set_global_default(self.clone());
        let log = self.clone();
        let previous_hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            log.append(panic);
            previous_hook(panic);
        }));
    }

    /// Appends an error to the file, and sends it to the system log. The caller prints it to
    /// standard error.
    pub fn append(&self, message: impl Display) {
        self.append_with(Severity::Error, message);
    }

    fn append_with(&self, severity: Severity, message: impl Display) {
        let message = message.to_string();
        self.system.send(severity, &message);
        let Some(file) = &self.file else { return };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        let now = time::full(Timestamp { seconds, nanoseconds: now.subsec_nanos() });
        // One write, so that the lines of several processes do not mix.
        let line = format!("{now} [{}] {message}\n", std::process::id());
        let _ = (&**file).write_all(line.as_bytes());
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= Level::WARN
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = String::new();
        let is_warning = *event.metadata().level() == Level::WARN;
        if is_warning {
            line.push_str("warning: ");
        }
        event.record(&mut Line(&mut line));
        self.append_with(if is_warning { Severity::Warning } else { Severity::Error }, &line);
        let line = format!("bifolio: {line}\n");
        // One write, so that the lines of several threads do not mix.
        let _ = std::io::stderr().write_all(line.as_bytes());
    }

    // Spans are not logged, so they can share an id.
    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}

struct Line<'a>(&'a mut String);

impl Visit for Line<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string cannot fail.
        let _ = match field.name() {
            "message" => write!(self.0, "{value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}
