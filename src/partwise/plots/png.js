// Draws a figure's SVG as a PNG of twice its size when its link is followed. Without scripts, the link is not shown.
for (const link of document.querySelectorAll("a[data-png]")) {
  link.hidden = false;
  link.addEventListener("click", (event) => {
    if (link.href.startsWith("data:image/png")) return;
    event.preventDefault();
    const image = new Image();
    image.onload = () => {
      const canvas = document.createElement("canvas");
      canvas.width = 2 * image.width;
      canvas.height = 2 * image.height;
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      link.href = canvas.toDataURL("image/png");
      link.click();
    };
    image.src = link.previousElementSibling.href;
  });
}
