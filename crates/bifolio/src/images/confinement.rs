//! The confinement of commands: after all images are open, and before a byte of them is parsed.
//! Not here: the layers (`confine`), mounts.

use std::ffi::OsString;

use clap::Args;
use confine::{Confinement, FILES_MAX, Layer, Needs, Proof, Resources, Trees};

use crate::console;
use crate::console::failure::{Failure, Result};

/// The memory that a command may map beside its cache, in bytes: stacks, and what it keeps of large
/// directories.
const MEMORY_BESIDE_CACHE: u64 = 8 << 30;
/// The maximum number of open files of a copy of a tree, which has one directory open for each
/// level.
const COPY_FILES_MAX: u64 = 1 << 16;
/// The value of `--no-confine` that stands for all layers.
const EVERY_LAYER: &str = "all";

/// The option for the confinement of the process that reads an image.
#[derive(Args, Clone, Debug, Default)]
pub struct ConfinementOptions {
    /// Leave out layers of the confinement of the process that reads the image: LAYER is
    /// no-new-privs, user, capabilities, landlock, chroot, limits, seccomp or all, or several of
    /// them, separated by commas. Without LAYER: all. Only for images that you trust. Commands
    /// other than mount also obey the variable BIFOLIO_NO_CONFINE=LAYER, and then print a warning
    #[arg(long, value_name = "LAYER", num_args = 0..=1, require_equals = true, value_delimiter = ',',
        default_missing_value = EVERY_LAYER, value_parser = parse_layer)]
    no_confine: Vec<Confinement>,
}

impl ConfinementOptions {
    /// Returns the layers that the options leave.
    pub fn layers(&self) -> Confinement {
        self.no_confine.iter().copied().fold(Confinement::FULL, Confinement::and)
    }

    /// Leaves out the layers that `layers` does not have, too.
    pub fn limit_to(&mut self, layers: Confinement) {
        self.no_confine.push(layers);
    }

    /// Returns the layers that the options leave, or the variable if there are no options. A
    /// variable is easily set for more commands than intended, so a warning names the layers that
    /// it leaves out.
    fn layers_of_command(&self) -> Result<Confinement> {
        let Some(value) = variable().filter(|_| self.no_confine.is_empty()) else {
            return Ok(self.layers());
        };
        let value = value.to_string_lossy();
        let layers = value.split(',').map(parse_layer).collect::<Result<Vec<_>, _>>();
        let layers = layers.map_err(|error| Failure::new(VARIABLE, error).usage())?;
        let layers = layers.into_iter().fold(Confinement::FULL, Confinement::and);
        let missing = Layer::ALL.into_iter().filter(|layer| !layers.has(*layer));
        let missing = missing.map(Layer::name).collect::<Vec<_>>().join(", ");
        console::warn(format_args!("{VARIABLE} leaves out layers of the confinement: {missing}"));
        Ok(layers)
    }
}

/// The variable that leaves layers out, for commands other than mount.
const VARIABLE: &str = "BIFOLIO_NO_CONFINE";

/// Returns the value of the variable, unless it is empty.
fn variable() -> Option<OsString> {
    std::env::var_os(VARIABLE).filter(|value| !value.is_empty())
}

/// Warns that a mount is confined in spite of the variable, which may come from a session of
/// another user than the one who mounts.
pub fn warn_of_ignored_variable() {
    if variable().is_some() {
        tracing::warn!(
            "{VARIABLE} is ignored; only --no-confine leaves out layers of a mount's confinement"
        );
    }
}

/// Returns the confinement without a layer.
pub fn parse_layer(name: &str) -> Result<Confinement, String> {
    if name == EVERY_LAYER {
        return Ok(Confinement::NONE);
    }
    let layer = Layer::from_name(name);
    layer.map(|layer| Confinement::FULL.without(layer)).ok_or_else(|| {
        let names = Layer::ALL.map(Layer::name).join(", ");
        format!("expected {names} or {EVERY_LAYER}")
    })
}

/// What a command needs that is confined.
#[derive(Clone, Copy, Debug)]
pub struct CommandNeeds<'a> {
    /// Whether it may write to an image.
    pub writable: bool,
    /// Whether it may read standard input.
    pub input: bool,
    /// The maximum size of its cache.
    pub cache_bytes_max: u64,
    /// The trees of the host that it copies.
    pub trees: Trees<'a>,
}

/// Confines the process, which must have no other threads yet, to open files, to trees of the host
/// and to printing. Errors: a layer is missing.
pub fn confine_command(options: &ConfinementOptions, needs: CommandNeeds<'_>) -> Result<()> {
    let layers = options.layers_of_command()?;
    if !layers.is_any() {
        return Ok(());
    }
    let resources = Resources {
        memory_max: needs.cache_bytes_max.saturating_mul(2).saturating_add(MEMORY_BESIDE_CACHE),
        files_max: match needs.trees {
            Trees::None => FILES_MAX,
            Trees::Read { .. } | Trees::Create { .. } => COPY_FILES_MAX,
        },
    };
    let CommandNeeds { writable, input, trees, .. } = needs;
    if !input {
        let left = confine::leave_input();
        left.map_err(|errno| {
            Failure::host("standard input", "cannot replace it by an empty pipe", &errno.into())
        })?;
    }
    let needs = Needs { writable, output: true, rings: false, guard: false, resources, trees };
    let weaker = confine::confine(layers, needs, &Proof::open_or_ask());
    let weaker = weaker.map_err(|error| Failure::new("", error.to_string()))?;
    if let Some(old) = weaker.old_landlock.filter(|old| !old.is_made_up_for()) {
        console::warn(old);
    }
    if let Some(missing) = weaker.without_rights {
        console::warn(missing);
    }
    Ok(())
}
