// The JSON interface. A refusal becomes an Error with the server's one line.

async function answered(request) {
  let response;
  try {
    response = await request;
  } catch {
    throw new Error("The server does not answer. Is unibct gallery serve still running?");
  }
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(answer.detail ?? `The server says ${response.status}.`);
  return answer;
}

export const getJson = path => answered(fetch(path));

export const postJson = (path, body = {}) => answered(fetch(path, {
  method: "POST",
  headers: { "Content-Type": "application/json" },
  body: JSON.stringify(body),
}));

export const postImage = (path, image) => answered(fetch(path, { method: "POST", body: image }));

export const imageAddress = id => `/api/image/${encodeURIComponent(id)}`;
