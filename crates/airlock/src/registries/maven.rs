//! Maven: `<url>` of mirrors and repositories in `settings.xml`.

use super::{Settings, Told};
use std::path::PathBuf;

pub(super) fn told(settings: &Settings<'_>) -> Vec<Told> {
    let installed = ["MAVEN_HOME", "M2_HOME"].iter().filter_map(|name| settings.variable(name));
    let installed = installed.map(|home| PathBuf::from(home).join("conf/settings.xml"));
    let usual = ["/etc/maven/settings.xml", "/usr/share/maven/conf/settings.xml"].map(PathBuf::from);
    let files = settings.home(".m2/settings.xml").into_iter().chain(installed).chain(usual);
    let mut told: Vec<Told> = files.filter_map(|path| settings.in_file(&path, urls)).collect();
    told.dedup_by(|a, b| a.urls == b.urls);
    told
}

/// The texts of `<url>` elements, outside comments. No more of XML is needed to find them.
fn urls(text: &str) -> Vec<String> {
    let mut urls = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('<') {
        rest = rest.get(at..).unwrap_or_default();
        if let Some(comment) = rest.strip_prefix("<!--") {
            let Some((_, behind)) = comment.split_once("-->") else { break };
            rest = behind;
        } else if let Some(element) = rest.strip_prefix("<url>") {
            let (url, behind) = element.split_once('<').unwrap_or((element, ""));
            urls.push(url.trim().replace("&amp;", "&"));
            rest = behind;
        } else {
            rest = rest.get(1..).unwrap_or_default();
        }
    }
    urls
}

#[cfg(test)]
mod tests {
    use super::super::tests::{expected, told_on};
    use proptest::prelude::*;

    #[test]
    fn mirrors_and_repositories_are_found_and_comments_are_not() {
        let text = "<settings><!-- <mirror><url>https://no.example.com</url></mirror> -->\n<mirrors><mirror><id>x</id>\n\
                    <url>\n https://maven.example.com/repo?a&amp;b </url></mirror></mirrors>\n<profiles><profile><repositories>\
                    <repository><url>http://repo.example.org:8081/</url></repository></repositories></profile></profiles></settings>";
        let told = told_on("maven", &[("HOME", "/home/ada")], &[("/home/ada/.m2/settings.xml", text)]);
        let hosts: &[(&str, &[&str])] =
            &[("/home/ada/.m2/settings.xml", &["maven.example.com", "repo.example.org:8081"])];
        assert_eq!(told, expected(hosts));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "(<url>|</url>|<!--|-->|<|[a-z/:. ]|\n){0,60}") {
            let _ = super::urls(&text);
        }
    }
}
