//! Tests of extent nodes with damage and random bytes: parsing returns an error or a valid node.

use proptest::prelude::*;

use fs::Run;

use super::*;
use crate::layout::geometry::FILE_BLOCKS_MAX;
use crate::layout::geometry::tests::plain;
use crate::ondisk::extent::MAGIC;

fn header(entries: u16, max: u16, depth: u16) -> Vec<u8> {
    let words = [MAGIC, entries, max, depth, 0, 0];
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn entry(block: u32, length: u16, start: u64) -> Vec<u8> {
    let mut bytes = block.to_le_bytes().to_vec();
    bytes.extend(length.to_le_bytes());
    bytes.extend(((start >> 32) as u16).to_le_bytes());
    bytes.extend((start as u32).to_le_bytes());
    bytes
}

fn index(block: u32, leaf: u64) -> Vec<u8> {
    let mut bytes = block.to_le_bytes().to_vec();
    bytes.extend((leaf as u32).to_le_bytes());
    bytes.extend(((leaf >> 32) as u16).to_le_bytes());
    bytes.extend([0; 2]);
    bytes
}

fn node(header: Vec<u8>, entries: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = [header, entries.concat()].concat();
    bytes.resize(60, 0);
    bytes
}

fn parse(bytes: &[u8], depth: Option<u16>, range: std::ops::Range<u64>) -> Result<Node> {
    let range = FileBlock(range.start)..FileBlock(range.end);
    Node::parse(
        bytes,
        BlockValidity::of_any_block(&plain()),
        Expected { depth, range },
        Location::default(),
    )
}

fn find(bytes: &[u8], at: u64) -> NodeSearch {
    let (geometry, root) = (plain(), Expected::of_root());
    let validity = BlockValidity::of_any_block(&geometry);
    super::find(bytes, validity, &root, Location::default(), FileBlock(at)).unwrap()
}

fn root(bytes: &[u8]) -> Result<Node> {
    parse(bytes, None, 0..FILE_BLOCKS_MAX)
}

/// Checks that parsing failed, and that the error's text contains `text`.
fn refuses(result: Result<Node>, text: &str) {
    let error = result.expect_err(text).to_string();
    assert!(error.contains(text), "{error} should say {text}");
}

#[test]
fn adjacent_extents_are_one_run() {
    let bytes = node(
        header(3, 4, 0),
        &[entry(0, 32768, 1), entry(32768, 100, 32769), entry(32868, 32768 + 5, 32869)],
    );
    let NodeSearch::Found(span) = find(&bytes, 0) else { panic!() };
    let lengths: Vec<_> = span.runs.iter().map(|run| (run.length, run.unwritten)).collect();
    assert_eq!(lengths, [(32868, false), (5, true)]);
}

#[test]
fn damaged_leaves_are_refused() {
    let leaf = |entries: &[Vec<u8>]| root(&node(header(entries.len() as u16, 4, 0), entries));
    refuses(leaf(&[entry(5, 0, 100)]), "length");
    refuses(leaf(&[entry(5, 2, 100), entry(6, 1, 200)]), "does not follow");
    refuses(leaf(&[entry(5, 2, 100), entry(1, 1, 200)]), "does not follow");
    refuses(leaf(&[entry(u32::MAX - 1, 2, 100)]), "end of the extent");
    refuses(leaf(&[entry(5, 2, 0)]), "block is 0");
    refuses(leaf(&[entry(5, 2, 39_999)]), "block is 39999");
    refuses(leaf(&[entry(5, 2, 1 << 40)]), "block is");
    let bytes = node(header(1, 4, 0), &[entry(7, 1, 100)]);
    refuses(parse(&bytes, Some(0), 8..100), "does not follow");
    refuses(parse(&bytes, Some(0), 0..7), "end of the extent");
}

#[test]
fn damaged_inner_nodes_are_refused() {
    let inner = |entries: &[Vec<u8>]| root(&node(header(entries.len() as u16, 4, 1), entries));
    refuses(inner(&[]), "entries is 0");
    refuses(inner(&[index(5, 100), index(5, 101)]), "does not follow");
    refuses(inner(&[index(0, 40_000)]), "block is 40000");
    refuses(inner(&[index(u32::MAX, 100)]), "file block is");
    let bytes = node(header(1, 4, 1), &[index(50, 100)]);
    refuses(parse(&bytes, Some(1), 0..50), "file block is 50");
    // A block that leads to itself has the wrong depth when it is read again.
    refuses(parse(&bytes, Some(0), 0..100), "depth is 1");
}

#[test]
fn damaged_headers_are_refused() {
    let bytes = |header| root(&node(header, &[]));
    refuses(bytes(vec![0; 12]), "magic");
    refuses(bytes(header(0, 5, 0)), "room for entries");
    refuses(bytes(header(0, 0, 0)), "room for entries");
    refuses(bytes(header(5, 4, 0)), "entries is 5");
    refuses(bytes(header(1, 4, 6)), "depth is 6");
    refuses(root(&[]), "needs 12 bytes");
}

#[test]
fn a_gap_ends_at_the_next_child() {
    let bytes = node(header(2, 4, 1), &[index(10, 100), index(50, 200)]);
    let search = |at| find(&bytes, at);
    let NodeSearch::Found(gap) = search(9) else { panic!() };
    assert_eq!(gap, Span::hole(FileBlock(0), FileBlock(10)));
    let NodeSearch::Child { block, expected } = search(49) else { panic!() };
    assert_eq!((block, expected.range), (FsBlock(100), FileBlock(10)..FileBlock(50)));
    let NodeSearch::Child { block, expected } = search(50) else { panic!() };
    assert_eq!((block, expected.range), (FsBlock(200), FileBlock(50)..FileBlock(FILE_BLOCKS_MAX)));
}

proptest! {
    #[test]
    fn random_bytes_parse_to_an_error_or_a_valid_node(
        mut bytes in prop::collection::vec(any::<u8>(), 0..200),
        with_header in any::<bool>(),
        start in 0..1000_u64,
        length in 1..1000_u64,
    ) {
        if with_header && bytes.len() >= 60 {
            let count = u16::from(bytes[0] % 5);
            let header = header(count, 4, u16::from(bytes[1] % 3));
            bytes[..12].copy_from_slice(&header);
        }
        let is_sound = parse(&bytes, None, start..start + length).is_ok();
        let range = FileBlock(start)..FileBlock(start + length);
        for at in start..start + length {
            let (at, expected) = (FileBlock(at), Expected { depth: None, range: range.clone() });
            let geometry = plain();
            let validity = BlockValidity::of_any_block(&geometry);
            match super::find(&bytes, validity, &expected, Location::default(), at) {
                Ok(NodeSearch::Found(span)) => {
                    prop_assert!(span.contains(at));
                    prop_assert!(range.start <= span.start && span.end <= range.end);
                    let blocks = |run: &Run| run.block.0 > 0 && run.block.0 + run.length <= 40_000;
                    prop_assert!(span.runs.iter().all(blocks));
                }
                Ok(NodeSearch::Child { expected, .. }) => prop_assert!(expected.range.contains(&at)),
                Err(error) => prop_assert!(!is_sound, "{error}"),
            }
        }
    }
}
