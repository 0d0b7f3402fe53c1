//! An image of another one and of what was changed since. Pure and total.
//!
//! How it is run stays as the image below says; [`changed`] applies what a person says otherwise, in the words of a Dockerfile.

use crate::{
    build::{Fault, dockerfile::Dockerfile, instruction::Kind, scope::Scope, state},
    layer::Packed,
    manifest::{Config, Descriptor, History, Manifest, Other, media},
};
use std::collections::BTreeMap;

/// What a person says of a new image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Words {
    /// When it was made, in RFC 3339.
    pub created: String,
    /// By which command.
    pub created_by: String,
    /// By whom.
    pub author: Option<String>,
    /// What for.
    pub message: Option<String>,
}

/// Why a change was not made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It makes no sense.
    #[error("a change makes no sense")]
    Fault(#[from] Fault),
    /// It would change files.
    #[error("a change cannot be `{0}`: only how an image is run can be changed like this")]
    Files(String),
}

/// What only one engine's own bookkeeping had there.
const OF_OTHERS: [&str; 6] = ["container", "container_config", "docker_version", "id", "parent", "throwaway"];

/// A config changed by instructions of a Dockerfile that touch no file: CMD, ENTRYPOINT, ENV, EXPOSE, HEALTHCHECK, LABEL, ONBUILD,
/// SHELL, STOPSIGNAL, USER, VOLUME, WORKDIR.
pub fn changed(config: &Config, changes: &[String]) -> Result<Config, Error> {
    let text = format!("FROM scratch\n{}\n", changes.join("\n"));
    let file = Dockerfile::parse(&text)?;
    let platform = config.platform();
    let scope = Scope::new(&file, BTreeMap::new(), &platform, &platform)?;
    let on_build = config.config.on_build.clone();
    let mut state = state::State::new(config.clone(), file.escape);
    state.config.config.on_build = on_build;
    let has_path = config.config.env.iter().any(|pair| pair.starts_with("PATH="));
    if file.stages.len() > 1 {
        return Err(Error::Files("FROM".to_owned()));
    }
    for instruction in file.stages.iter().flat_map(|stage| &stage.instructions) {
        match &instruction.kind {
            Kind::Workdir(text) => drop(state.enter(&scope, instruction, text)?),
            Kind::Arg(_) | Kind::Copy(_) | Kind::Add(_) | Kind::Run(_) => {
                let word = instruction.text.split_whitespace().next().unwrap_or_default();
                return Err(Error::Files(word.to_owned()));
            }
            _ => drop(state.apply(&scope, instruction)?),
        }
    }
    let mut config = state.config;
    let of_builds = format!("PATH={}", state::PATH);
    config.config.env.retain(|pair| has_path || *pair != of_builds);
    Ok(config)
}

/// The config of `base` with these layers upon it, lowest first.
pub fn config(base: &Config, layers: &[Packed], words: &Words) -> Config {
    let mut config = base.clone();
    for key in OF_OTHERS {
        config.other.remove(key);
    }
    config.created = Some(words.created.clone());
    if words.author.is_some() {
        config.author.clone_from(&words.author);
    }
    config.rootfs.diff_ids.extend(layers.iter().map(|layer| layer.diff));
    let step = |empty_layer| History {
        created: Some(words.created.clone()),
        created_by: Some(words.created_by.clone()),
        author: words.author.clone(),
        comment: words.message.clone(),
        empty_layer,
        other: Other::new(),
    };
    match layers {
        [] => config.history.push(step(true)),
        layers => config.history.extend(layers.iter().map(|_| step(false))),
    }
    config
}

/// The manifest of such an image, whose config is this.
pub fn manifest(base: &Manifest, layers: &[Packed], config: Descriptor) -> Manifest {
    let of_oci =
        |layer: &Descriptor| Descriptor { media_type: of_oci(&layer.media_type).to_owned(), ..layer.clone() };
    let below = base.layers.iter().map(of_oci);
    let own = layers.iter().map(|layer| Descriptor::of(&layer.media_type, layer.digest, layer.size));
    Manifest::of(config, below.chain(own).collect())
}

/// What OCI calls a layer that Docker calls otherwise.
fn of_oci(kind: &str) -> &str {
    match kind {
        media::DOCKER_LAYER => media::OCI_LAYER,
        media::DOCKER_LAYER_GZIP => media::OCI_LAYER_GZIP,
        media::DOCKER_LAYER_ZSTD => media::OCI_LAYER_ZSTD,
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{digest::Digest, manifest::Platform};

    fn base() -> Config {
        let platform =
            Platform { architecture: "amd64".into(), os: "linux".into(), variant: None, other: Other::new() };
        let mut config = Config::of(&platform, "2020-01-01T00:00:00Z".into());
        config.config.cmd = Some(vec!["sh".into()]);
        config.config.on_build = vec!["RUN make".into()];
        config.rootfs.diff_ids.push(Digest::of(b"base"));
        config.other.insert("container".into(), "of another engine".into());
        config
    }

    fn of(changes: &[&str]) -> Result<Config, Error> {
        changed(&base(), &changes.iter().map(|change| (*change).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn changes_are_said_in_the_words_of_a_dockerfile() {
        let config =
            of(&["CMD [\"a\", \"b c\"]", "ENV x=1", "WORKDIR /w", "USER 7", "LABEL l=\"m n\""]).unwrap();

        let run = config.config;
        assert_eq!(run.cmd, Some(vec!["a".into(), "b c".into()]));
        assert_eq!((run.env, run.working_dir.as_str(), run.user.as_str()), (vec!["x=1".into()], "/w", "7"));
        assert_eq!((run.labels["l"].as_str(), run.on_build), ("m n", vec!["RUN make".to_owned()]));
    }

    #[test]
    fn a_change_that_would_touch_files_or_makes_no_sense_is_refused() {
        for change in ["RUN true", "COPY a b", "ADD a b", "ARG a", "FROM x", "NONSENSE", "EXPOSE no"] {
            assert!(of(&[change]).is_err(), "{change}");
        }
        assert_eq!(
            of(&["RUN true"]).unwrap_err().to_string(),
            "a change cannot be `RUN`: only how an image is run can be changed like this"
        );
    }

    #[test]
    fn an_image_goes_on_from_the_one_below_and_tells_how() {
        let layer = Packed {
            digest: Digest::of(b"blob"),
            size: 4,
            diff: Digest::of(b"diff"),
            entries: 1,
            left_out: 0,
            media_type: media::OCI_LAYER_GZIP.into(),
        };
        let words =
            Words { created: "2021-01-01T00:00:00Z".into(), message: Some("m".into()), ..Words::default() };
        let docker = Descriptor::of(media::DOCKER_LAYER_GZIP, Digest::of(b"base blob"), 9);
        let below = Manifest::of(Descriptor::of(media::OCI_CONFIG, Digest::of(b""), 0), vec![docker]);

        let made = config(&base(), std::slice::from_ref(&layer), &words);
        let manifest = manifest(&below, &[layer], Descriptor::of(media::OCI_CONFIG, Digest::of(b"c"), 1));

        assert_eq!(made.rootfs.diff_ids, [Digest::of(b"base"), Digest::of(b"diff")]);
        let said: Vec<_> =
            made.history.iter().map(|step| (step.comment.as_deref(), step.empty_layer)).collect();
        assert_eq!((said, made.other.len()), (vec![(Some("m"), false)], 0));
        let kinds: Vec<_> = manifest.layers.iter().map(|layer| layer.media_type.as_str()).collect();
        assert_eq!(kinds, [media::OCI_LAYER_GZIP; 2]);
    }
}
