//! Times, always in UTC, because an image has no time zone.

use base::attributes::Timestamp;

const DAY_SECONDS: i64 = 86_400;

/// Date and time of day in the Gregorian calendar.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Civil {
    year: i64,
    month: u8,
    day: u8,
    hour: u8,
    minute: u8,
    second: u8,
}

/// Returns the date and time `seconds` after the start of 1970.
fn civil(seconds: i64) -> Civil {
    let days = seconds.div_euclid(DAY_SECONDS);
    let rest = seconds.rem_euclid(DAY_SECONDS);
    // Days since 1 March of the year 0. Leap days are then the last days of years, and the calendar
    // repeats every 400 years of 146,097 days.
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // The lengths of months from March on repeat: 31, 30, 31, 30, 31 days, which are 153 days in
    // five months.
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

/// Formats a time to the minute, as in `ls -l`: `2026-11-21 09:19`.
pub fn minutes(time: Timestamp) -> String {
    let Civil { year, month, day, hour, minute, .. } = civil(time.seconds);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}")
}

/// Formats a full time, as in `stat`: `2026-11-21 09:19:36.123456789 +0000`.
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
    fn times_equal_those_of_date() {
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
