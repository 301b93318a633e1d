//! Image making and comparison for the tests (development only).
