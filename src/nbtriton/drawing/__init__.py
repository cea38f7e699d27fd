"""Pictures of plain data: SVG, HTML and text, without servers, notebooks or scripts."""
