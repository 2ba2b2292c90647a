"""Energies, forces and dipoles of molecules by a graph network that also moves their atoms."""
