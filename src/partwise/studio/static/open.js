// Exchanges the token after the link's # for a cookie. Browsers send what follows a # to no server, and to no other page.
const prefix = document.body.dataset.prefix;
const said = document.getElementById("said");
const token = location.hash.slice(1);
history.replaceState(null, "", location.pathname);

async function open() {
  const answer = await fetch(`${prefix}/session`, {
    method: "POST",
    headers: { "content-type": "application/json", "x-partwise": "1" },
    body: JSON.stringify({ token }),
  });
  if (answer.ok) location.replace(`${prefix}/ask`);
  else said.textContent = `Not opened: ${(await answer.json()).error}.`;
}

if (token) open().catch(() => { said.textContent = "Not opened: the studio does not answer. Does it still run?"; });
else said.textContent = "Open the link that the terminal shows.";
