// Where the node is: empty, or the path that a reverse proxy puts before all of its paths, such as "/loadmanager".
export const BASE = new URL("..", import.meta.url).pathname.replace(/\/$/, "");
