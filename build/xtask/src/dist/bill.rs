//! The bill of materials in CycloneDX 1.5 (ECMA-424), and the text of all licences.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::crates::Crate;
use crate::graph::digest::Digest;

/// A wheel of the device toolchain, or a program of the build machine.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Tool {
    pub name: String,
    pub version: String,
    /// Digest of the wheel; none for a program.
    pub sha256: Option<String>,
    /// Purpose of the tool in the build.
    pub purpose: String,
    /// Whether the binary contains code of the tool.
    pub linked: bool,
}

/// Supplier of this workspace's crates.
const AUTHORS: &str = "The Atlas authors";

/// The bill of materials of a binary.
pub fn cyclonedx(
    name: &str,
    version: &str,
    sha256: &str,
    crates: &[Crate],
    tools: &[Tool],
) -> Value {
    let depends = |of: &str, on: &[String]| json!({"ref": of, "dependsOn": on});
    let linked = tools.iter().filter(|tool| tool.linked).filter_map(purl);
    let own = crates.iter().filter(|known| known.sha256.is_none());
    let direct: Vec<String> = own.map(of_cargo).chain(linked).collect();
    let mut graph = vec![depends(name, &direct)];
    let others = crates.iter();
    graph.extend(others.map(|known| depends(&of_cargo(known), &known.needs)));
    let (linked, making): (Vec<&Tool>, Vec<&Tool>) = tools.iter().partition(|tool| tool.linked);
    let components = crates.iter().map(of_crate);
    let components: Vec<Value> = components.chain(linked.into_iter().map(of_tool)).collect();
    let making: Vec<Value> = making.into_iter().map(of_tool).collect();
    json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": serial(sha256),
        "version": 1,
        "metadata": {
            "tools": {"components": making},
            "component": {
                "type": "application", "bom-ref": name, "name": name, "version": version,
                "hashes": [{"alg": "SHA-256", "content": sha256}],
                "licenses": [{"license": {"id": "Apache-2.0"}}],
                "supplier": {"name": AUTHORS},
            },
        },
        "dependencies": graph,
        "components": components,
    })
}

/// A UUID (RFC 9562, version 8) derived from the binary's digest.
fn serial(sha256: &str) -> String {
    let digits = Digest::of(sha256.as_bytes()).to_string();
    let part = |from: usize, to: usize| &digits[from..to];
    format!(
        "urn:uuid:{}-{}-8{}-8{}-{}",
        part(0, 8),
        part(8, 12),
        part(13, 16),
        part(17, 20),
        part(20, 32)
    )
}

fn of_cargo(known: &Crate) -> String {
    format!("pkg:cargo/{}@{}", known.name, known.version)
}

/// Package URL of a wheel; none for a program.
fn purl(tool: &Tool) -> Option<String> {
    let name = tool.name.replace('_', "-");
    tool.sha256.as_ref()?;
    Some(format!("pkg:pypi/{name}@{}", tool.version))
}

fn of_crate(known: &Crate) -> Value {
    let (name, version, licence) = (&known.name, &known.version, &known.licence);
    let purl = of_cargo(known);
    let supplier = match known.sha256 {
        Some(_) => "crates.io",
        None => AUTHORS,
    };
    let mut component = json!({
        "supplier": {"name": supplier},
        "type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl,
        "scope": "required", "licenses": [{"expression": licence.replace('/', " OR ")}],
    });
    if let Some(sha256) = &known.sha256 {
        component["hashes"] = json!([{"alg": "SHA-256", "content": sha256}]);
    }
    if let Some(url) = &known.repository {
        component["externalReferences"] = json!([{"type": "vcs", "url": url}]);
    }
    component
}

fn of_tool(tool: &Tool) -> Value {
    let (name, version, purpose) = (&tool.name, &tool.version, &tool.purpose);
    let mut component = json!({
        "type": if tool.linked { "library" } else { "application" },
        "name": name, "version": version, "description": purpose,
    });
    if let (Some(sha256), Some(purl)) = (&tool.sha256, purl(tool)) {
        component["supplier"] = json!({"name": "NVIDIA"});
        component["purl"] = json!(purl);
        component["bom-ref"] = json!(purl);
        component["hashes"] = json!([{"alg": "SHA-256", "content": sha256}]);
    }
    component
}

/// One text of all licences: the licences of each part, then each licence text once. `own` is this
/// project's licence; `tools` are linked wheels with their licence texts.
pub fn licences(own: &str, crates: &[Crate], tools: &[(String, String)]) -> String {
    let mut out = String::from(
        "This program is under the Apache License 2.0. It holds code of the libraries below, each \
         under its own\nlicence; their texts follow.\n\n",
    );
    // Names of the parts under each licence text.
    let mut texts: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    texts.insert(own.trim(), vec!["atlas".to_string()]);
    for known in crates {
        let label = format!("{} {}", known.name, known.version);
        out.push_str(&format!("{label}: {}\n", known.licence));
        for (file, text) in &known.texts {
            let owners = texts.entry(text.trim()).or_default();
            owners.push(format!("{label} ({file})"));
        }
    }
    for (name, text) in tools {
        out.push_str(&format!("{name}: its own terms\n"));
        texts.entry(text.trim()).or_default().push(name.clone());
    }
    out.push_str("the Rust standard library: MIT OR Apache-2.0\n");
    for (text, owners) in texts {
        let (line, owners) = ("-".repeat(80), owners.join("\n"));
        out.push_str(&format!("\n{line}\n{owners}\n{line}\n\n{text}\n"));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn library() -> Crate {
        Crate {
            name: "a".into(),
            version: "1.0.0".into(),
            licence: "MIT/Apache-2.0".into(),
            repository: None,
            sha256: Some("77".into()),
            needs: vec!["pkg:cargo/b@1.0.0".into()],
            texts: vec![("LICENSE".into(), "be kind\n".into())],
        }
    }

    fn wheel(linked: bool) -> Tool {
        Tool {
            name: "nvidia_x".into(),
            version: "13".into(),
            sha256: Some("88".into()),
            purpose: "p".into(),
            linked,
        }
    }

    #[test]
    fn crates_and_linked_wheels_are_components() {
        let made = cyclonedx(
            "atlas-x",
            "1",
            "99",
            &[library()],
            &[wheel(true), wheel(false)],
        );
        let purls: Vec<&Value> = made["components"]
            .as_array()
            .unwrap()
            .iter()
            .map(|c| &c["purl"])
            .collect();
        assert_eq!(purls, ["pkg:cargo/a@1.0.0", "pkg:pypi/nvidia-x@13"]);
        assert_eq!(
            made["components"][0]["licenses"][0]["expression"],
            "MIT OR Apache-2.0"
        );
        let graph = made["dependencies"].as_array().unwrap();
        assert_eq!(graph[0]["dependsOn"], json!(["pkg:pypi/nvidia-x@13"]));
        assert_eq!(graph[1]["dependsOn"], json!(["pkg:cargo/b@1.0.0"]));
        let mut components = made["components"].as_array().unwrap().iter();
        assert!(components.all(|part| part["supplier"]["name"].is_string()));
        let tools = made["metadata"]["tools"]["components"].as_array().unwrap();
        assert_eq!(tools.len(), 1);
    }

    #[test]
    fn the_serial_number_follows_from_the_binary() {
        let one = serial("aa");
        assert_eq!((one.len(), &one[..9]), (45, "urn:uuid:"));
        assert!(one == serial("aa") && one != serial("ab"));
    }

    #[test]
    fn a_licence_that_many_have_is_printed_once() {
        let mut other = library();
        other.name = "b".into();
        let text = licences("own", &[library(), other], &[]);
        assert_eq!(text.matches("be kind").count(), 1);
        assert!(text.contains("a 1.0.0 (LICENSE)\nb 1.0.0 (LICENSE)"));
    }
}
