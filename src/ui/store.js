// Conversations kept in this browser, for the address at which this page is. Nothing else is: no key.

const DATABASE = "atlas " + location.pathname;
/** What of the settings is kept, and whether anything is. */
const SETTINGS = DATABASE + " settings";

class Store {
  /** A store that is open, or one that keeps nothing where the browser refuses. */
  static async open() {
    const store = new Store();
    try {
      const request = indexedDB.open(DATABASE, 1);
      request.onupgradeneeded = () => {
        request.result.createObjectStore("heads", { keyPath: "id" });
        request.result.createObjectStore("chats", { keyPath: "id" });
      };
      store.base = await Store.#done(request);
    } catch {
      store.base = null;
    }
    return store;
  }

  static #done(request) {
    return new Promise((resolve, reject) => {
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => reject(request.error);
      request.onblocked = () => reject(new Error("blocked"));
    });
  }

  get keeps() {
    return this.base !== null && $("keep").checked;
  }

  #stores(mode) {
    const open = this.base.transaction(["heads", "chats"], mode);
    return [open.objectStore("heads"), open.objectStore("chats")];
  }

  /** What is known of each conversation without reading it. */
  async heads() {
    return this.base ? Store.#done(this.#stores("readonly")[0].getAll()) : [];
  }

  async read(id) {
    return this.base ? Store.#done(this.#stores("readonly")[1].get(id)) : undefined;
  }

  async all() {
    return this.base ? Store.#done(this.#stores("readonly")[1].getAll()) : [];
  }

  /** Writes a conversation; the promise fails where the browser has no room. */
  async write(head, chat) {
    if (!this.keeps) return;
    const [heads, chats] = this.#stores("readwrite");
    heads.put(head);
    await Store.#done(chats.put(chat));
  }

  async remove(id) {
    if (!this.base) return;
    const [heads, chats] = this.#stores("readwrite");
    heads.delete(id);
    await Store.#done(chats.delete(id));
  }

  async clear() {
    if (!this.base) return;
    const [heads, chats] = this.#stores("readwrite");
    heads.clear();
    await Store.#done(chats.clear());
  }
}

/** A small value of this browser, or of this tab; null where the browser keeps none. */
function recall(where, name) {
  try {
    return where().getItem(name);
  } catch {
    return null;
  }
}

function recallAll() {
  try {
    return { ...localStorage };
  } catch {
    return {};
  }
}

function remember(where, name, value) {
  try {
    where().setItem(name, value);
  } catch {
    // Then it is forgotten.
  }
}

const browser = () => localStorage;
const tab = () => sessionStorage;
