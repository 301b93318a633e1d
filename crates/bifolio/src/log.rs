//! Shows what the library logs, from warnings up, on standard error. Not here: the failures that a
//! command itself reports (`console`).

use std::fmt::{self, Write as _};
use std::io::Write as _;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// From now on.
pub fn to_standard_error() {
    // Fails only when there is a subscriber already.
    let _ = tracing::subscriber::set_global_default(Log);
}

struct Log;

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= Level::WARN
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = String::from("bifolio: ");
        if *event.metadata().level() == Level::WARN {
            line.push_str("warning: ");
        }
        event.record(&mut Line(&mut line));
        line.push('\n');
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
