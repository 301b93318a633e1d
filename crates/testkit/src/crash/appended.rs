//! A model of a file to which several threads append records, and its possible contents after a
//! power cut.
//!
//! A record contains its thread and its number within the thread. A cut leaves a prefix of the
//! appended data: all records but the last are complete, and each thread's records are in order,
//! without gaps.

use crate::Random;

/// The size of a record's head in bytes, which is the smallest record.
const HEAD: usize = 6;
/// The number of values of a byte in a record's head. No byte is zero, or as large as the bytes of
/// free blocks.
const DIGITS: usize = 200;

/// A record.
#[derive(Clone, Debug)]
struct Record {
    data: Vec<u8>,
    begun: u64,
    /// `u64::MAX` until the end.
    ended: u64,
}

/// A promise: the number of durable records of each thread from a point of the recording on.
#[derive(Clone, Debug)]
struct Durable {
    point: usize,
    counts: Vec<usize>,
}

/// The records that threads have appended to one file.
#[derive(Debug)]
pub struct Appended {
    clock: u64,
    /// The records of each thread.
    records: Vec<Vec<Record>>,
    durable: Vec<Durable>,
}

impl Appended {
    /// Returns the history of an empty file to which `threads` threads append.
    pub fn new(threads: usize) -> Self {
        Self { clock: 0, records: vec![Vec::new(); threads], durable: Vec::new() }
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Begins to append the next record of a thread. It has `length` bytes, or more if its head
    /// needs them.
    pub fn begin(&mut self, thread: usize, length: usize) -> Vec<u8> {
        let (number, begun) = (self.records[thread].len(), self.tick());
        let mut random = Random((thread << 32 | number) as u64 + 77);
        let fill = (HEAD..length.max(HEAD)).map(|_| 1 + random.below(DIGITS as u64) as u8);
        let digit = |value: usize| 1 + (value % DIGITS) as u8;
        let head = [thread, number, number / DIGITS, length, length / DIGITS, 0].map(digit);
        let data: Vec<u8> = head.into_iter().chain(fill).collect();
        self.records[thread].push(Record { data: data.clone(), begun, ended: u64::MAX });
        data
    }

    /// Records that the last record of a thread is in the file, and the point from which on it is
    /// durable, if it is.
    pub fn end(&mut self, thread: usize, durable: Option<usize>) {
        let ended = self.tick();
        let records = &mut self.records[thread];
        let count = records.len();
        records[count - 1].ended = ended;
        if let Some(point) = durable {
            let mut counts = vec![0; self.records.len()];
            counts[thread] = count;
            self.synced(point, counts);
        }
    }

    /// Returns the number of records of each thread in the file.
    pub fn ended(&self) -> Vec<usize> {
        let is_ended = |one: &&Record| one.ended < u64::MAX;
        self.records.iter().map(|records| records.iter().take_while(is_ended).count()).collect()
    }

    /// Records that so many records of each thread are durable from `point` on.
    pub fn synced(&mut self, point: usize, counts: Vec<usize>) {
        self.durable.push(Durable { point, counts });
    }

    /// Fails with a description if the contents cannot be those after a cut at `point`.
    pub fn check(&self, point: usize, found: &[u8]) -> Result<(), String> {
        let (whole, newest) = self.parse(found)?;
        for (thread, (records, count)) in self.records.iter().zip(&whole).enumerate() {
            let durable = self.durable.iter().filter(|one| one.point <= point);
            let durable = durable.map(|one| one.counts[thread]).max().unwrap_or(0);
            if *count < durable {
                return Err(format!("{count} records of thread {thread}, not {durable}"));
            }
            if records.get(*count).is_some_and(|missing| missing.ended < newest) {
                return Err(format!("record {count} of thread {thread} is missing before others"));
            }
        }
        Ok(())
    }

    /// Returns the number of complete records of each thread, and the begin of the youngest record
    /// of which there is a part.
    fn parse(&self, found: &[u8]) -> Result<(Vec<usize>, u64), String> {
        let mut counts = vec![0; self.records.len()];
        let mut newest = 0;
        let mut at = 0;
        while at < found.len() {
            let thread = usize::from(found[at]).wrapping_sub(1);
            let record = self.records.get(thread).and_then(|one| one.get(counts[thread]));
            let record = record.ok_or_else(|| format!("no record's head at {at}"))?;
            let length = record.data.len().min(found.len() - at);
            if found[at..at + length] != record.data[..length] {
                let count = counts[thread];
                return Err(format!("other bytes than record {count} of thread {thread} at {at}"));
            }
            newest = newest.max(record.begun);
            counts[thread] += usize::from(length == record.data.len());
            at += record.data.len();
        }
        Ok((counts, newest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_leaves_a_prefix_with_all_promised_records() {
        let mut appended = Appended::new(2);
        let first = appended.begin(0, 50);
        appended.end(0, None);
        let second = appended.begin(1, 300);
        appended.end(1, Some(10));
        let all = [first.clone(), second.clone()].concat();
        for length in 0..=all.len() {
            assert_eq!(appended.check(9, &all[..length]), Ok(()), "{length} bytes");
            assert_eq!(appended.check(10, &all[..length]).is_ok(), length == all.len());
        }
        let swapped = [second.clone(), first.clone()].concat();
        // The order of two complete records is not checked. But the second one cannot be there
        // without the first.
        assert_eq!(appended.check(9, &swapped), Ok(()));
        assert!(appended.check(9, &second).is_err());
        let mut zeroed = all.clone();
        zeroed[20] = 0;
        assert!(appended.check(9, &zeroed).is_err());
        assert!(appended.check(9, &[all.clone(), vec![0; 3]].concat()).is_err());
        assert!(appended.check(9, &[all, first].concat()).is_err());
        assert_eq!(appended.ended(), [1, 1]);
    }
}
