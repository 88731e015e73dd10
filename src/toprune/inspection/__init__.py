"""Looking into a bundle: explain, scores, stress and the web app."""
