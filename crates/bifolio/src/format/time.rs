//! Points in time, always in UTC: an image does not say where it was made.

use base::attributes::Timestamp;

const DAY_SECONDS: i64 = 86_400;

/// A date and a time of day in the Gregorian calendar.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Civil {
    year: i64,
    month: u8,
    day: u8,
    hour: u8,
    minute: u8,
    second: u8,
}

/// The date and time `seconds` after 1970 began.
fn civil(seconds: i64) -> Civil {
    let (days, rest) = (seconds.div_euclid(DAY_SECONDS), seconds.rem_euclid(DAY_SECONDS));
    // Count from 1 March of the year 0: leap days then come last in a year, and the calendar
    // repeats every 400 years of 146,097 days.
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // Months from March on have 31, 30, 31, 30, 31 days, and so again: 153 days in five.
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    Civil {
        year,
        month: month as u8,
        day: day as u8,
        hour: (rest / 3600) as u8,
        minute: (rest / 60 % 60) as u8,
        second: (rest % 60) as u8,
    }
}

/// To the minute, as `ls -l` shows it: `2026-11-21 09:19`.
pub fn minutes(time: Timestamp) -> String {
    let Civil { year, month, day, hour, minute, .. } = civil(time.seconds);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}")
}

/// In full, as `stat` shows it: `2026-11-21 09:19:36.123456789 +0000`.
pub fn full(time: Timestamp) -> String {
    let Civil { year, month, day, hour, minute, second } = civil(time.seconds);
    let nanoseconds = time.nanoseconds;
    format!(
        "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{nanoseconds:09} +0000"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(seconds: i64, expected: &str) {
        assert_eq!(full(Timestamp { seconds, nanoseconds: 5 }), expected);
    }

    #[test]
    fn times_are_those_that_date_prints() {
        check(0, "1970-01-01 00:00:00.000000005 +0000");
        check(-1, "1969-12-31 23:59:59.000000005 +0000");
        check(951_782_399, "2000-02-28 23:59:59.000000005 +0000");
        check(951_782_400, "2000-02-29 00:00:00.000000005 +0000");
        check(1_709_251_199, "2024-02-29 23:59:59.000000005 +0000");
        check(4_107_542_400, "2100-03-01 00:00:00.000000005 +0000");
        check(15_032_385_535, "2446-05-10 22:38:55.000000005 +0000");
        check(-2_147_483_648, "1901-12-13 20:45:52.000000005 +0000");
        assert_eq!(minutes(Timestamp::default()), "1970-01-01 00:00");
    }

    #[test]
    fn no_time_is_out_of_range() {
        for seconds in [i64::MIN, i64::MAX] {
            assert!(!full(Timestamp { seconds, nanoseconds: 0 }).is_empty());
        }
    }
}
