//! Dates and times on a command line, in UTC as in all output. Not here: their output
//! (`format::time`).

use base::attributes::Timestamp;

const NANOSECOND_DIGITS: usize = 9;
const EXPECTED: &str = "expected a time in UTC such as 2024-05-06, \"2024-05-06 07:08:09.5\", 2024-05-06T07:08:09+02:00 or \
     @SECONDS";
const EXPECTED_STAMP: &str = "expected [[CC]YY]MMDDhhmm[.ss]";

/// Parses a time: a date with or without a time of day and an offset from UTC, or `@` and seconds
/// since 1970.
pub fn parse(text: &str) -> Result<Timestamp, String> {
    parse_seconds(text).or_else(|| parse_date(text)).ok_or_else(|| EXPECTED.to_owned())
}

/// Parses a time as touch(1) does after -t. A year of two digits is from 1969 to 2068; without one,
/// it is `year`.
pub fn parse_stamp(text: &str, year: i64) -> Result<Timestamp, String> {
    stamp(text, year).ok_or_else(|| EXPECTED_STAMP.to_owned())
}

/// Returns the year of a time.
pub fn year_of(time: Timestamp) -> i64 {
    let days = time.seconds.div_euclid(86_400);
    // At most one year too small.
    let guess = 1970 + days.div_euclid(366) - 1;
    (guess..).take_while(|&year| days_before(year) <= days).last().unwrap_or(guess)
}

fn parse_seconds(text: &str) -> Option<Timestamp> {
    let text = text.strip_prefix('@')?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let nanoseconds = nanoseconds(fraction)?;
    let seconds: i64 = whole.parse().ok()?;
    match (whole.starts_with('-'), nanoseconds) {
        // -1.25 is -2 seconds and 750,000,000 nanoseconds.
        (true, 1..) => Some(Timestamp {
            seconds: seconds.checked_sub(1)?,
            nanoseconds: 1_000_000_000 - nanoseconds,
        }),
        _ => Some(Timestamp { seconds, nanoseconds }),
    }
}

fn parse_date(text: &str) -> Option<Timestamp> {
    let text = text.trim();
    let (date, rest) = text.split_at_checked(text.find([' ', 'T', 't']).unwrap_or(text.len()))?;
    let mut parts = date.split('-');
    let mut part =
        |digits: usize| parts.next().filter(|part| part.len() == digits).and_then(number);
    let (year, month, day) = (part(4)?, part(2)?, part(2)?);
    if parts.next().is_some() {
        return None;
    }
    let rest = rest.trim_start_matches([' ', 'T', 't']);
    let (clock, offset) = split_offset(rest)?;
    let (seconds, nanoseconds) = if clock.is_empty() { (0, 0) } else { parse_clock(clock)? };
    let midnight = seconds_of(year, month, day)?;
    Some(Timestamp { seconds: midnight + seconds - offset, nanoseconds })
}

/// Splits a time of day from its offset from UTC, which is returned in seconds.
fn split_offset(text: &str) -> Option<(&str, i64)> {
    let text = text.strip_suffix("UTC").unwrap_or(text).trim_end();
    if let Some(clock) = text.strip_suffix(['Z', 'z']) {
        return Some((clock.trim_end(), 0));
    }
    let Some(at) = text.find(['+', '-']) else { return Some((text, 0)) };
    let (clock, offset) = text.split_at_checked(at)?;
    let digits: String = offset.chars().skip(1).filter(|&char| char != ':').collect();
    let hours = number(digits.get(..2)?)?;
    let minutes = match digits.get(2..)? {
        "" => 0,
        minutes => number(minutes).filter(|_| minutes.len() == 2)?,
    };
    let seconds = (hours * 60 + minutes) * 60;
    Some((clock.trim_end(), if offset.starts_with('-') { -seconds } else { seconds }))
}

/// Parses `HH:MM` or `HH:MM:SS`, with a fraction.
fn parse_clock(text: &str) -> Option<(i64, u32)> {
    let mut parts = text.split(':');
    let hour = number(parts.next()?).filter(|hour| *hour < 24)?;
    let minute = number(parts.next()?).filter(|minute| *minute < 60)?;
    let (second, nanoseconds) = match parts.next() {
        None => (0, 0),
        Some(seconds) => {
            let (second, fraction) = seconds.split_once(['.', ',']).unwrap_or((seconds, "0"));
            (number(second).filter(|second| *second < 60)?, nanoseconds(fraction)?)
        }
    };
    parts.next().is_none().then_some(((hour * 60 + minute) * 60 + second, nanoseconds))
}

fn stamp(text: &str, this_year: i64) -> Option<Timestamp> {
    let (digits, second) = text.split_once('.').unwrap_or((text, "00"));
    if second.len() != 2 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let second = number(second).filter(|second| *second < 60)?;
    let (year, rest) = digits.split_at_checked(digits.len().checked_sub(8)?)?;
    let year = match (year.len(), number(year)) {
        (0, _) => this_year,
        (2, Some(year)) => year + if year < 69 { 2000 } else { 1900 },
        (4, Some(year)) => year,
        _ => return None,
    };
    let pair = |at: usize| number(rest.get(at..at + 2)?);
    let (hour, minute) = (pair(4)?, pair(6)?);
    if hour > 23 || minute > 59 {
        return None;
    }
    let seconds = seconds_of(year, pair(0)?, pair(2)?)? + (hour * 60 + minute) * 60 + second;
    Some(Timestamp { seconds, nanoseconds: 0 })
}

fn number(text: &str) -> Option<i64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

/// Parses the digits of a fraction of a second.
fn nanoseconds(digits: &str) -> Option<u32> {
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let digits = digits.get(..digits.len().min(NANOSECOND_DIGITS)).filter(|_| is_number)?;
    format!("{digits:0<NANOSECOND_DIGITS$}").parse().ok()
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

/// Returns the days from 1970 to the start of a year.
fn days_before(year: i64) -> i64 {
    let leap_days = |year: i64| year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    (year - 1970) * 365 + leap_days(year - 1) - leap_days(1969)
}

/// Returns the seconds from 1970 to the start of a day. `None` if there is no such day.
fn seconds_of(year: i64, month: i64, day: i64) -> Option<i64> {
    const DAYS: [i64; 12] = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let month = usize::try_from(month).ok()?.checked_sub(1)?;
    let leap = i64::from(is_leap(year));
    let length = DAYS.get(month)? + if month == 1 { leap } else { 0 };
    if !(1..=length).contains(&day) {
        return None;
    }
    let before: i64 = DAYS.get(..month)?.iter().sum::<i64>() + if month > 1 { leap } else { 0 };
    Some((days_before(year) + before + day - 1) * 86_400)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_parsed_as_by_date() {
        let parsed = |text: &str| parse(text).map(|time| (time.seconds, time.nanoseconds));
        for (text, seconds, nanoseconds) in [
            ("1970-01-01", 0, 0),
            ("2000-02-29 23:59:59.25", 951_868_799, 250_000_000),
            ("1969-12-31T23:59:59Z", -1, 0),
            ("2024-05-06 07:08", 1_714_979_280, 0),
            ("2024-05-06T07:08:09+02:00", 1_714_972_089, 0),
            ("2024-05-06 07:08:09.000000005 +0000", 1_714_979_289, 5),
            ("2024-05-06 07:08 -0130", 1_714_984_680, 0),
            ("1901-12-14 00:00", -2_147_472_000, 0),
            ("@12", 12, 0),
            ("@-1.25", -2, 750_000_000),
        ] {
            assert_eq!(parsed(text), Ok((seconds, nanoseconds)), "{text}");
        }
        for bad in [
            "",
            "x",
            "2024",
            "2024-13-01",
            "2023-02-29",
            "2024-01-01 24:00",
            "2024-01-01 1",
            "@",
            "@1.",
            "24-01-01",
        ] {
            assert!(parsed(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn stamps_are_parsed_as_by_touch() {
        let parsed = |text: &str| parse_stamp(text, 2024).map(|time| time.seconds);
        assert_eq!(parsed("05060708"), Ok(1_714_979_280));
        assert_eq!(parsed("2405060708.09"), Ok(1_714_979_289));
        assert_eq!(parsed("196912312359.59"), Ok(-1));
        assert_eq!(parsed("6912312359.59"), Ok(-1));
        for bad in ["", "0506070", "05060708.1", "00000000", "05062408"] {
            assert!(parsed(bad).is_err(), "{bad}");
        }
        for (seconds, year) in [(0, 1970), (-1, 1969), (1_714_979_280, 2024), (1_704_067_199, 2023)]
        {
            assert_eq!(year_of(Timestamp { seconds, nanoseconds: 0 }), year);
        }
    }
}
