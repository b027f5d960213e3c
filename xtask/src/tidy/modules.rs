//! Which file of a crate uses which: modules by path, names followed through re-exports.
//!
//! ```text
//! Crate -- Module x n: a file -- modules: names of its `mod x;`
//!                            |- bound: name -> path, from its `use` items
//!                            \- named: paths that its code uses, with their lines
//! ```

use super::files::Tree;
use super::paths::{Named, Place, leaves, named};
use super::source::File;
use std::collections::{BTreeMap, HashMap, HashSet};
use syn::Item;

/// Re-exports of re-exports are followed so many times.
const FOLLOWED_MAX: usize = 8;

/// The sources of a crate, without its tests.
pub(super) struct Crate {
    modules: Vec<Module>,
    /// By path in the crate: indices in `modules`. A library and a program share the root.
    by_path: HashMap<Vec<String>, Vec<usize>>,
}

struct Module {
    file: String,
    path: Vec<String>,
    modules: HashSet<String>,
    bound: HashMap<String, Vec<String>>,
    named: Vec<(Vec<String>, usize)>,
}

/// All crates of the tree.
pub(super) fn crates(tree: &Tree) -> Vec<Crate> {
    let manifests = tree.files().iter().filter(|file| file.name() == "Cargo.toml");
    let sources = manifests.map(|manifest| {
        let base = manifest.path.trim_end_matches("Cargo.toml");
        format!("{base}src/")
    });
    sources.map(|sources| Crate::new(tree, &sources)).collect()
}

impl Crate {
    fn new(tree: &Tree, sources: &str) -> Crate {
        let inside = tree.files().iter().filter(|file| !file.is_test());
        let modules: Vec<Module> = inside.filter_map(|file| Module::new(file, sources)).collect();
        let mut by_path: HashMap<Vec<String>, Vec<usize>> = HashMap::new();
        for (index, module) in modules.iter().enumerate() {
            by_path.entry(module.path.clone()).or_default().push(index);
        }
        Crate { modules, by_path }
    }

    /// The path of a file of this crate.
    pub(super) fn path(&self, index: usize) -> &str {
        &self.modules[index].file
    }

    /// By file: the files that define what it uses, and the first line that does.
    pub(super) fn dependencies(&self) -> BTreeMap<usize, BTreeMap<usize, usize>> {
        let mut all = BTreeMap::new();
        for (from, module) in self.modules.iter().enumerate() {
            let uses: &mut BTreeMap<usize, usize> = all.entry(from).or_default();
            for (path, line) in &module.named {
                let found = self.absolute(module, path).and_then(|path| self.define(&path, 0));
                if let Some(to) = found.filter(|to| *to != from) {
                    let first = uses.entry(to).or_insert(*line);
                    *first = (*first).min(*line);
                }
            }
        }
        all
    }

    /// A path of a module's code, from the root of the crate; `None` for what is elsewhere.
    fn absolute(&self, module: &Module, path: &[String]) -> Option<Vec<String>> {
        let first = path.first()?.as_str();
        let supers = path.iter().take_while(|part| *part == "super").count();
        let here = &module.path;
        match first {
            "crate" => Some(path[1..].to_vec()),
            "self" => Some([here, &path[1..]].concat()),
            "super" => Some([&here[..here.len().checked_sub(supers)?], &path[supers..]].concat()),
            _ if module.modules.contains(first) => Some([here, path].concat()),
            _ => {
                let bound = module.bound.get(first)?;
                let full = [bound, &path[1..]].concat();
                (bound != path).then(|| self.absolute(module, &full)).flatten()
            }
        }
    }

    /// The file that defines what `path` names; `None` for modules and for what is not found.
    fn define(&self, path: &[String], followed: usize) -> Option<usize> {
        let is_module = |length: &usize| self.by_path.contains_key(&path[..*length]);
        let length = (0..=path.len()).rev().find(is_module)?;
        let indices = &self.by_path[&path[..length]];
        let name = path.get(length)?;
        if name == "*" {
            return indices.first().copied();
        }
        let binds = |index: &&usize| self.modules[**index].bound.contains_key(name);
        let Some(index) = indices.iter().find(binds).filter(|_| followed < FOLLOWED_MAX) else {
            return indices.first().copied();
        };
        let module = &self.modules[*index];
        let full = [&module.bound[name], &path[length + 1..]].concat();
        let absolute = self.absolute(module, &full)?;
        self.define(&absolute, followed + 1)
    }
}

impl Module {
    fn new(file: &File, sources: &str) -> Option<Module> {
        let inside = file.path.strip_prefix(sources)?.strip_suffix(".rs")?;
        let inside = inside.strip_suffix("/mod").unwrap_or(inside);
        let path = match inside {
            "lib" | "main" => Vec::new(),
            inside => inside.split('/').map(str::to_owned).collect(),
        };
        let mut module = Module {
            file: file.path.clone(),
            path,
            modules: HashSet::new(),
            bound: HashMap::new(),
            named: Vec::new(),
        };
        let rust = file.rust()?;
        module.declare(&rust.syntax.items);
        let all = named(&rust.syntax).into_iter();
        // A re-export alone is no dependency: its file depends on it only where it uses it.
        let used = all.filter(|named| !named.for_tests && named.place == Place::Use);
        module.named = used.map(|named| (from_file(&named), named.line)).collect();
        Some(module)
    }

    fn declare(&mut self, items: &[Item]) {
        for item in items {
            match item {
                Item::Mod(item) if item.content.is_none() => {
                    self.modules.insert(item.ident.to_string());
                }
                Item::Use(item) => {
                    let names = leaves(&item.tree).into_iter();
                    self.bound.extend(names.map(|(name, path, _)| (name, path)));
                }
                _ => {}
            }
        }
    }
}

/// A path as the file itself would write it: an inline module is in the file.
fn from_file(named: &Named) -> Vec<String> {
    let supers = named.path.iter().take_while(|part| *part == "super").count();
    named.path[supers.min(named.inside.len())..].to_vec()
}
