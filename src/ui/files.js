// Text files that go with a message: chosen or dropped, shown as chips, sent in fences after the text.

/** Bytes of one file; a context holds about a megabyte of text. */
const FILE_BYTES_MAX = 512 * 1024;
const FILES_MAX = 20;
const NAME_CHARS_MAX = 100;

/** The text of a file in UTF-8; throws the sentence that says why it is not taken. */
async function fileText(file) {
  if (file.size > FILE_BYTES_MAX) {
    const [size, most] = [file.size, FILE_BYTES_MAX].map((bytes) => Math.ceil(bytes / 1024));
    throw new Told(`${file.name} has ${grouped(size)} KiB: a file may have ${most}.`);
  }
  const bytes = await file.arrayBuffer().catch(() => null);
  if (!bytes) throw new Told(`${file.name} cannot be read.`);
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    if (!text.includes("\0")) return text;
  } catch {
    // Bytes of something else.
  }
  throw new Told(`${file.name} is no text in UTF-8: only such files can be read.`);
}

/** Adds files to the draft of a conversation; those that cannot be taken are reported. */
async function attach(conversation, chosen) {
  const problems = [];
  for (const file of chosen) {
    try {
      const text = await fileText(file);
      if (conversation.files.length >= FILES_MAX) throw new Told(`A message has ${FILES_MAX} files at most.`);
      conversation.files.push({ name: file.name.slice(0, NAME_CHARS_MAX), text });
    } catch (error) {
      if (!(error instanceof Told)) throw error;
      problems.push(error.message);
    }
  }
  notice(conversation, problems.join("\n"));
  filesChanged(conversation);
}

function filesChanged(conversation) {
  if (conversation === current) drawFiles();
  save(conversation);
  countSoon();
}

/** A chip with the name and the size of a file. */
function chip(parent, { name, text }) {
  const made = element(parent, "span", "chip", name);
  made.dir = "auto";
  element(made, "span", "figures", ` ${grouped(text.length)} characters`);
  return made;
}

/** Shows the files of the draft, each with a button that takes it away. */
function drawFiles() {
  const { files } = current;
  $("files").replaceChildren();
  for (const file of files) {
    const made = chip($("files"), file);
    const remove = button(made, "✕", "", () => {
      files.splice(files.indexOf(file), 1);
      filesChanged(current);
      $("prompt").focus();
    });
    remove.setAttribute("aria-label", "Remove file " + file.name);
  }
}

/** A file as the model reads it: its name, and its text in a fence that the text cannot close. */
function fencedFile({ name, text }) {
  const runs = text.match(/`+/g) ?? [];
  const fence = "`".repeat(runs.reduce((most, run) => Math.max(most, run.length + 1), 3));
  return `\n\n${fence}${name.replace(/[`\p{C}]/gu, " ").trim()}\n${text.replace(/\n$/, "")}\n${fence}`;
}

/** What the server is sent of a text and its files. */
function contentOf({ text, files }) {
  if (!files?.length) return text;
  return [text, ...files.map(fencedFile)].filter(Boolean).map((part) => ({ type: "text", text: part }));
}
