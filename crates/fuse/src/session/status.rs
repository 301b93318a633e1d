//! Facts about processes and threads of the host, in the text of /proc/PID/status. Not here: the
//! questions that they answer (`kill_check`, `questions`, `mark`, `upgrade`).

/// Returns the status of a process or thread, which is named as in /proc. `None` if there is none.
pub fn read(process: impl std::fmt::Display) -> Option<String> {
    std::fs::read_to_string(format!("/proc/{process}/status")).ok()
}

/// Returns the value of a field in a status.
pub fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(value.trim())
}

/// Returns the effective user of a process or thread.
pub fn effective_user(process: u32) -> Option<u32> {
    field(&read(process)?, "Uid")?.split_ascii_whitespace().nth(1)?.parse().ok()
}
