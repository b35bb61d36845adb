// What every part of the page uses: the data island, elements whose text is never markup, the chosen module.
const island = JSON.parse(document.getElementById("island").textContent);
