"""Models divided over ranks: layers over tensor-parallel ones, chains of layers over pipeline stages."""
