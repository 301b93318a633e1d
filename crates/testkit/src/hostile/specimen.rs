//! Damage to fields of ext4 images, with correct checksums, so that only checks of the fields find
//! it. Not here: the use of the damaged images.

use std::ops::Range;

use super::fields::Structure;
use super::places::{Place, Shape, structures};
use super::subject::{Damage, Damageable};
use crate::Choose;

/// A valid image whose fields are damaged.
#[derive(Debug)]
pub struct Specimen {
    /// The name of the kind of image.
    pub name: &'static str,
    /// The image.
    pub bytes: Vec<u8>,
    shape: Shape,
    places: Vec<Place>,
    structures: Vec<Structure>,
}

impl Specimen {
    /// Returns a specimen of a valid image.
    pub fn new(name: &'static str, bytes: Vec<u8>) -> Self {
        let shape = Shape::of(&bytes);
        let places = shape.places(&bytes);
        let structures = structures(&places);
        Self { name, bytes, shape, places, structures }
    }

    /// Returns the shape of the image.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns the structures of the image.
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// Returns the ranges that a change of the byte `at` and the mending of a checksum may affect.
    fn changed(&self, structure: Structure, at: usize) -> Vec<Range<usize>> {
        let unit = self.shape.block.max(2048);
        let start = at / unit * unit;
        let around = start..(start + 2 * unit).min(self.bytes.len());
        let descriptors = (structure == Structure::Bitmap).then(|| self.shape.descriptors());
        std::iter::once(around).chain(descriptors).collect()
    }

    /// Chooses a field of a structure, or one of the words that are not zero.
    fn field(&self, place: &Place, choose: &mut impl Choose) -> (String, usize, usize) {
        if choose.below(4) > 0 {
            let (name, offset, length) =
                *choose.pick(place.structure.fields()).expect("a structure has fields");
            return (name.to_owned(), place.at + offset, length);
        }
        let size = match place.structure {
            Structure::Inode => self.shape.inode_size,
            Structure::Entry => 12,
            Structure::Extents => 60,
            Structure::Descriptor => 32,
            Structure::Superblock | Structure::JournalSuperblock | Structure::Mmp => 1024,
            _ => self.shape.block,
        };
        let words: Vec<usize> = (place.at..place.at + size)
            .step_by(4)
            .filter(|at| self.bytes[*at..at + 4] != [0; 4])
            .collect();
        let at = choose.pick(&words).copied().unwrap_or(place.at);
        let length = 1 << choose.below(3);
        (format!("word {}", at - place.at), at, length)
    }

    /// Chooses a value: often the block or the inode of another structure.
    fn value(&self, old: &[u8], choose: &mut impl Choose) -> Vec<u8> {
        let other = match choose.below(4) {
            0 => choose.pick(&self.places).map(|place| (place.at / self.shape.block) as u64),
            1 => choose.pick(&self.places).map(|place| u64::from(place.inode)),
            _ => None,
        };
        match other {
            Some(number) => number.to_le_bytes()[..old.len()].to_vec(),
            None => other_value(old, choose),
        }
    }
}

impl Damageable for Specimen {
    fn name(&self) -> &str {
        self.name
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn damage<C: Choose>(&self, image: &mut [u8], choose: &mut C) -> Damage {
        // Each structure is as likely as the others, whatever the number of its instances is.
        let structure = *choose.pick(&self.structures).expect("a superblock");
        let places: Vec<&Place> =
            self.places.iter().filter(|place| place.structure == structure).collect();
        let place = *choose.pick(&places).expect("the structure has a place");
        let (field, at, length) = self.field(place, choose);
        let old = image[at..at + length].to_vec();
        let new = self.value(&old, choose);
        image[at..at + length].copy_from_slice(&new);
        self.shape.mend(image, &self.bytes, place);
        let description = format!(
            "{structure:?} {} of inode {} at {:#x}, {field}: {old:02x?} became {new:02x?}",
            place.name, place.inode, place.at
        );
        Damage { description, changed: self.changed(place.structure, at) }
    }
}

/// Chooses another value of a field.
pub fn other_value(bytes: &[u8], choose: &mut impl Choose) -> Vec<u8> {
    let mut old = [0; 8];
    old[..bytes.len()].copy_from_slice(bytes);
    let old = u64::from_le_bytes(old);
    for _ in 0..100 {
        let new = match choose.below(8) {
            0 => 0,
            1 => old.wrapping_add(1),
            2 => old.wrapping_sub(1),
            3 | 4 => old ^ 1 << choose.below(8 * bytes.len() as u64),
            5 => u64::MAX,
            // An inode or block of the volume, or a small number.
            6 => choose.below(150),
            _ => choose.draw(),
        };
        let new = &new.to_le_bytes()[..bytes.len()];
        if new != bytes {
            return new.to_vec();
        }
    }
    bytes.iter().map(|byte| !byte).collect()
}
