//! The newest release of `packaging/CHANGELOG.md`.

use chrono::{NaiveDate, NaiveDateTime};

/// Path of the changelog, from the root of the workspace.
pub const FILE: &str = "packaging/CHANGELOG.md";

/// Longest line of a Debian changelog, characters.
const COLUMNS: usize = 79;

/// A release of the changelog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    pub version: String,
    /// Date of the release, `YYYY-MM-DD`.
    pub date: String,
    /// Noon UTC of the date.
    noon: NaiveDateTime,
}

impl Release {
    /// The first release of the text, which must be that of `version`.
    ///
    /// # Errors
    /// If there is no release, the first is of another version, or its date is invalid.
    pub fn newest(text: &str, version: &str) -> Result<Release, String> {
        let heading = text.lines().find_map(|line| line.strip_prefix("## "));
        let heading = heading.ok_or_else(|| format!("{FILE} has no release"))?;
        let (newest, date) = heading
            .strip_suffix(')')
            .and_then(|heading| heading.split_once(" ("))
            .ok_or_else(|| format!("{FILE}: `{heading}` is not `VERSION (YYYY-MM-DD)`"))?;
        if newest != version {
            return Err(format!(
                "{FILE} begins with release {newest}, but Cargo.toml says {version}: describe it"
            ));
        }
        let day = NaiveDate::parse_from_str(date, "%Y-%m-%d").ok();
        let noon = day.and_then(|day| day.and_hms_opt(12, 0, 0));
        let noon = noon.ok_or_else(|| format!("{FILE}: `{date}` is no date"))?;
        Ok(Release {
            version: version.to_string(),
            date: noon.format("%Y-%m-%d").to_string(),
            noon,
        })
    }

    /// Noon UTC of the date, in seconds since 1970.
    pub fn seconds(&self) -> u64 {
        self.noon.and_utc().timestamp().unsigned_abs()
    }

    /// The release in the form of Debian's changelogs.
    pub fn debian(&self, package: &str, text: &str) -> String {
        let section = text.split("\n## ").nth(1).unwrap_or_default();
        let mut items: Vec<String> = Vec::new();
        let lines = section.lines().skip(1).map(str::trim);
        for line in lines.filter(|line| !line.is_empty()) {
            match (line.strip_prefix("- "), items.last_mut()) {
                (None, Some(item)) => *item = format!("{item} {line}"),
                (item, _) => items.push(item.unwrap_or(line).to_string()),
            }
        }
        let items: String = items.iter().map(|item| wrapped(item)).collect();
        let Release { version, .. } = self;
        format!(
            "{package} ({version}) stable; urgency=medium\n\n{items}\n \
             -- Atlas maintainers <atlas-maintainers@users.noreply.github.com>  {}\n",
            self.noon.format("%a, %d %b %Y %H:%M:%S +0000")
        )
    }
}

/// An item wrapped to lines of [`COLUMNS`].
fn wrapped(item: &str) -> String {
    let (mut out, mut line) = (String::new(), "  *".to_string());
    for word in item.split(' ') {
        if line.len() + 1 + word.len() > COLUMNS {
            out.push_str(&line);
            out.push('\n');
            line = "   ".to_string();
        }
        line.push(' ');
        line.push_str(word);
    }
    format!("{out}{line}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# Changes\n\nwords\n\n## 1.2.0 (2024-02-29)\n\n- one\n  more\n- two\n\n\
        ## 1.1.0 (2023-01-01)\n\n- old\n";

    #[test]
    fn the_newest_release_is_that_of_the_workspace() {
        let release = Release::newest(TEXT, "1.2.0").unwrap();
        assert_eq!(release.seconds(), 1_709_208_000);
        let why = Release::newest(TEXT, "1.3.0").unwrap_err();
        assert!(why.contains("1.2.0") && why.contains("1.3.0"), "{why}");
        assert!(Release::newest("## 1.0.0 (2024-13-01)", "1.0.0").is_err());
        assert!(Release::newest("none", "1.0.0").is_err());
    }

    #[test]
    fn debian_reads_the_newest_alone() {
        let text = Release::newest(TEXT, "1.2.0").unwrap().debian("p", TEXT);
        assert!(
            text.starts_with("p (1.2.0) stable; urgency=medium\n\n  * one more\n  * two\n\n --")
        );
        assert!(
            text.ends_with("  Thu, 29 Feb 2024 12:00:00 +0000\n"),
            "{text}"
        );
    }

    #[test]
    fn long_items_are_wrapped() {
        let text = wrapped(&["word"; 40].join(" "));
        assert!(text.lines().all(|line| line.len() <= COLUMNS) && text.lines().count() == 3);
        assert!(
            text.starts_with("  * word") && text.contains("\n    word"),
            "{text}"
        );
    }

    #[test]
    fn this_workspace_describes_its_version() {
        let root = crate::site::Site::here().root;
        let text = std::fs::read_to_string(root.join(FILE)).unwrap();
        Release::newest(&text, env!("CARGO_PKG_VERSION")).unwrap();
    }
}
