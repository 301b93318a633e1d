//! Shows what the library logs, from warnings up, on standard error, and appends it to a file, for those
//! who have no standard error. Not here: the failures that a command itself reports (`console`).

use std::fmt::{self, Display, Write as _};
use std::fs::File;
use std::io::Write as _;
use std::sync::Arc;
use std::time::SystemTime;

use base::attributes::Timestamp;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::format::time;

/// Where the lines go besides standard error.
#[derive(Clone, Debug, Default)]
pub struct Log {
    file: Option<Arc<File>>,
}

impl Log {
    /// To standard error, and to `file`, if any, which is open to append.
    pub fn new(file: Option<File>) -> Self {
        Self { file: file.map(Arc::new) }
    }

    /// Shows what the library logs from now on; panics, too, come into the file.
    pub fn begin(&self) {
        // Fails only when there is a subscriber already.
        let _ = tracing::subscriber::set_global_default(self.clone());
        let (log, before) = (self.clone(), std::panic::take_hook());
        std::panic::set_hook(Box::new(move |panic| {
            log.note(panic);
            before(panic);
        }));
    }

    /// Adds what standard error is told otherwise to the file.
    pub fn note(&self, what: impl Display) {
        let Some(file) = &self.file else { return };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        let now = time::full(Timestamp { seconds, nanoseconds: now.subsec_nanos() });
        // One write, so that the lines of several processes do not mix.
        let line = format!("{now} [{}] {what}\n", std::process::id());
        let _ = (&**file).write_all(line.as_bytes());
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= Level::WARN
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = String::new();
        if *event.metadata().level() == Level::WARN {
            line.push_str("warning: ");
        }
        event.record(&mut Line(&mut line));
        self.note(&line);
        let line = format!("bifolio: {line}\n");
        // One write, so that the lines of several threads do not mix.
        let _ = std::io::stderr().write_all(line.as_bytes());
    }

    // Spans are not shown, so that they need no identity.
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
